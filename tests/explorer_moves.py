"""What tests do with an explorer widget: press one of its presets, or set its controls; the view that it then shows."""

__all__ = ["at", "press"]


def press(explorer, label):
    """The view after the preset with this label."""
    (preset,) = [p for p in explorer.presets if p.label == label]
    return at(explorer, **preset.values)


def at(explorer, **values):
    """The view with these controls, the others as they are at first. An input that is refused fails the test."""
    explorer.set(**{**explorer.defaults, **values})
    assert not explorer.error
    return explorer.view
