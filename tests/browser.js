// What is wrong with the page as the window shows it, as a list of sentences. arguments: the least contrast of a text.
// A text is [element, words, quad]: the corners of a line of it, cut to what the boxes around it show.

const [least] = arguments;
const found = new Set();
const quoted = (words) => JSON.stringify(words.trim().replace(/\s+/g, " ").slice(0, 60));
const corners = (left, top, right, bottom) => [[left, top], [right, top], [right, bottom], [left, bottom]];

function drawn(element, words) { // in a picture; a letter fills the middle of its box
  const box = element.getBBox(), m = element.getScreenCTM(), picture = element.ownerSVGElement.getBoundingClientRect();
  const letters = corners(box.x, box.y + 0.2 * box.height, box.x + box.width, box.y + 0.8 * box.height);
  const quad = letters.map(([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f]);
  const inside = ([x, y]) => x > picture.left - 1 && x < picture.right + 1 && y > picture.top - 1 && y < picture.bottom + 1;
  if (!quad.every(inside)) found.add(`${quoted(words)} is cut off by its picture`);
  return [{element, words, quad}];
}

function written(element, node) {
  const range = document.createRange();
  range.selectNodeContents(node);
  const outside = (box) => box.right < 0; // of a drawer that is shut
  const lines = [...range.getClientRects()].filter((box) => !outside(box)).map((box) => ({left: box.left, right: box.right,
    top: box.top + 0.2 * box.height, bottom: box.bottom - 0.2 * box.height}));
  let scrolls = false;
  for (let around = element; around && around !== document.body; around = around.parentElement) {
    const style = getComputedStyle(around), shown = around.getBoundingClientRect();
    const flows = [style.overflowX, style.overflowY];
    if (style.display === "inline" || flows.every((flow) => flow === "visible")) continue;
    if (shown.width < 2 || shown.height < 2) return []; // for screen readers alone
    scrolls ||= flows.some((flow) => flow === "auto" || flow === "scroll");
    for (const line of lines) {
      const wide = line.right > shown.right + 1 || line.left < shown.left - 1;
      const high = line.bottom > shown.bottom + 1 || line.top < shown.top - 1;
      const cut = (out, flow) => out && !scrolls && (flow === "hidden" || flow === "clip");
      if (cut(wide, flows[0]) || cut(high, flows[1])) found.add(`${quoted(node.data)} is cut off`);
      line.left = Math.max(line.left, shown.left);
      line.right = Math.min(line.right, shown.right);
      line.top = Math.max(line.top, shown.top);
      line.bottom = Math.min(line.bottom, shown.bottom);
    }
  }
  if (!scrolls && lines.some((line) => line.left < -1)) found.add(`${quoted(node.data)} begins left of the page`);
  return lines.filter((line) => line.right > line.left + 1 && line.bottom > line.top + 1)
    .map((line) => ({element, words: node.data, quad: corners(line.left, line.top, line.right, line.bottom)}));
}

function texts() {
  const all = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = {opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true};
  while (walk.nextNode()) {
    const node = walk.currentNode, element = node.parentElement;
    if (!node.data.trim() || element.closest("script, style, title, option") || !element.checkVisibility(seen)) continue;
    all.push(...(element.ownerSVGElement ? drawn(element, node.data) : written(element, node)));
  }
  return all;
}

function reach(quad, [x, y]) {
  const along = quad.map(([a, b]) => a * x + b * y);
  return [Math.min(...along), Math.max(...along)];
}

function apart(one, other) { // an edge of one of two convex shapes separates them, give or take a pixel
  return [one, other].some((quad) => quad.some(([x, y], at) => {
    const [u, v] = quad[(at + 1) % 4], length = Math.hypot(u - x, v - y) || 1;
    const normal = [(y - v) / length, (u - x) / length];
    const [[a, b], [c, d]] = [reach(one, normal), reach(other, normal)];
    return b <= c + 1 || d <= a + 1;
  }));
}

function layer(element) { // what stays where it is while the rest moves may cover it
  while (element && !["fixed", "sticky"].includes(getComputedStyle(element).position)) element = element.parentElement;
  return element;
}

function overlaps(all) {
  for (const text of all) {
    [text.left, text.right] = reach(text.quad, [1, 0]);
    [text.top, text.bottom] = reach(text.quad, [0, 1]);
    text.layer = layer(text.element);
  }
  const sorted = [...all].sort((one, other) => one.top - other.top);
  sorted.forEach((one, at) => {
    for (let i = at + 1; i < sorted.length && sorted[i].top < one.bottom; i++) {
      const other = sorted[i];
      if (one.right <= other.left || other.right <= one.left || one.layer !== other.layer) continue;
      if (!apart(one.quad, other.quad)) found.add(`${quoted(one.words)} lies on ${quoted(other.words)}`);
    }
  });
}

const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true}), known = new Map();
function colour(text) { // [red, green, blue, alpha] of any CSS colour
  if (!known.has(text)) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = "#000";
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    known.set(text, [red, green, blue, alpha / 255]);
  }
  return known.get(text);
}
const over = (front, back) => [0, 1, 2].map((at) => front[at] * front[3] + back[at] * (1 - front[3]));
function luminance(rgb) { // WCAG 2.2
  const [r, g, b] = rgb.map((one) => (one /= 255) <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function paint(element) {
  const style = getComputedStyle(element);
  if (!element.ownerSVGElement) return colour(style.backgroundColor);
  const [red, green, blue, alpha] = colour(style.fill);
  return [red, green, blue, alpha * Number(style.fillOpacity)];
}

function contrasts(all) {
  for (const {element, words, left, right, top, bottom} of all) {
    const under = document.elementsFromPoint((left + right) / 2, (top + bottom) / 2).filter((one) => !one.closest("text"));
    if (!under.length) {
      found.add("a part of the page is outside its window, where nothing can be seen: take a taller one");
      continue;
    }
    const paints = under.map(paint), solid = paints.findIndex((one) => one[3] >= 1);
    const back = paints.slice(0, solid + 1 || undefined).reduceRight((below, one) => over(one, below), [255, 255, 255]);
    const style = getComputedStyle(element), ink = over(colour(element.ownerSVGElement ? style.fill : style.color), back);
    const [a, b] = [luminance(ink), luminance(back)], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least) found.add(`${quoted(words)} has a contrast of ${ratio.toFixed(2)}`);
  }
}

const wide = document.documentElement.scrollWidth;
if (wide > innerWidth) found.add(`the page is ${wide} pixels wide, its window ${innerWidth}`);
const all = texts();
overlaps(all);
contrasts(all);
return [...found];
