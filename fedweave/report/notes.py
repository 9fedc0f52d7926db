"""What must not be overlooked in a result: a model that is no better than a constant prediction."""

from collections.abc import Mapping

_REFERENCES = {
    "global": "the accuracy on all test examples, {:.3f}, is below {:.3f}, that of always predicting the most frequent "
    "class of the training examples.",
    "local": "the mean over clients of their test accuracies, {:.3f}, is below {:.3f}, that of each client always "
    "predicting the most frequent class of its own training examples.",
}


def notes(metrics: Mapping[str, float | None]) -> dict[str, str]:
    """{what: a sentence} on a summary's metrics (`rounds.RoundResult`); empty where a model does better than that."""
    found = {}
    accuracy = metrics.get("global/accuracy")
    if metrics.get("global/classes_predicted") == 1 and accuracy is not None and accuracy < 1:
        found["one class"] = f"the model predicts one class for all test examples; it is right for {accuracy:.1%}."
    for kind, words in _REFERENCES.items():
        reached, constant = metrics.get(f"{kind}/accuracy"), metrics.get(f"{kind}/majority")
        if reached is not None and constant is not None and reached < constant:
            found[kind] = words.format(reached, constant)
    return found
