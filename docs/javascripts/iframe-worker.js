// Browsers start no worker for a page that is opened from a file: there the search's worker runs in a hidden frame, and
// what it is sent waits until the frame has loaded. The theme asks for IFrameWorker in the page around its worker.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe"), {port1, port2} = new MessageChannel();
      this.port = port1;
      port1.onmessage = ({data}) => this.dispatchEvent(new MessageEvent("message", {data}));
      frame.hidden = true;
      frame.srcdoc = `<script>
        addEventListener("message", (first) => {
          first.stopImmediatePropagation();
          const port = first.ports[0];
          window.postMessage = (data) => port.postMessage(data);
          port.onmessage = ({data}) => dispatchEvent(new MessageEvent("message", {data}));
        }, {once: true});
      </script><script src="${new URL(url, location.href)}"></script>`;
      frame.onload = () => frame.contentWindow.postMessage(null, "*", [port2]);
      const place = () => document.body.append(frame);
      document.body ? place() : addEventListener("DOMContentLoaded", place);
    }

    postMessage(data) {
      this.port.postMessage(data);
    }

    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
