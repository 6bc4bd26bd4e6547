"""What notebooks call: one output with two faces, predictions that never tell, explorers that never raise."""

import re
import time

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient

from course_lib.checks import core
from course_lib.events import Finished, Started, Stepped, StepRecord, TrainResult, Validated, Validation
from course_lib.figures.style import new_figure
from course_lib.tokenizer import BytesTokenizer
from course_lib.widgets import (
    ChoiceControl,
    FloatControl,
    Goal,
    IntControl,
    Preset,
    TextControl,
    View,
    explorer,
    faces,
    hint,
    hints,
    next_token_explorer,
    watch,
)
from course_lib.widgets import predict as predict_function
from course_lib.widgets.next_token import reshape
from course_lib.widgets.saving import keep_static_faces

predict_module = __import__("course_lib.widgets.predict", fromlist=["_LOCKED"])
VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(autouse=True)
def fresh_predictions(monkeypatch):
    monkeypatch.setattr(predict_module, "_LOCKED", {})
    monkeypatch.setattr(predict_module, "_SCORES", {})


# ---------------------------------------------------------------------------------------------------------- predict


def ask(**changes):
    given = {
        "question": "How much more does it pull?",
        "options": ["the same", "2 times", "17.5 times"],
        "answer": 2,
        "misconceptions": ["mean-of-means-is-fine", None, None],
        "sentences": {"mean-of-means-is-fine": "A mean of means is the mean."},
    }
    return predict_function(**(given | changes))


def test_without_a_prediction_the_answer_is_not_told(capsys):
    ask().reveal("The short one has half of the vote.")
    said = capsys.readouterr().out.split("Predict:")[1].split("\n", 4)[-1]
    assert "no prediction" in said and "17.5" not in said and "vote" not in said


def test_a_wrong_prediction_gets_its_misconception(capsys):
    guess = ask()
    guess.lock(0, "certain")
    capsys.readouterr()
    guess.reveal("The short one has half of the vote.")
    said = capsys.readouterr().out
    assert "You said the same (certain)" in said and "17.5 times" in said
    assert "A mean of means is the mean." in said and "half of the vote" in said
    assert "0 of 1 predictions right, 0 of 1 when you were certain" in said


def test_a_right_prediction_gets_no_misconception(capsys):
    guess = ask(misconceptions=["a", "b", "wrong on purpose"])
    guess.lock(2)
    guess.reveal()
    said = capsys.readouterr().out
    assert "agrees" in said and "wrong on purpose" not in said and "1 of 1" in said


def test_an_id_without_sentence_is_readable(capsys):
    guess = ask(sentences=None)
    guess.lock(0)
    guess.reveal()
    assert "“mean of means is fine”" in capsys.readouterr().out


def test_what_is_locked_in_stays_when_the_cell_runs_again():
    ask().lock(1, "a guess")
    again = ask()
    assert again.locked == (1, "a guess")
    again.lock(2)
    assert again.locked == (1, "a guess")
    assert again._choice.disabled and again._button.disabled and "Locked in" in again._status.value


def test_the_button_asks_for_what_is_missing():
    guess = ask()
    guess._press()
    assert "Choose an answer" in guess._status.value and guess.locked is None
    guess._choice.index = 1
    guess._press()
    assert "how sure" in guess._status.value and guess.locked is None
    guess._sure.index = 2
    guess._press()
    assert guess.locked == (1, "certain")


@pytest.mark.parametrize(
    "changes", [{"answer": 3}, {"misconceptions": ["a"]}, {"options": ["x", "x", "y"]}, {"answer": -1}]
)
def test_a_question_that_does_not_fit_is_refused(changes):
    with pytest.raises(ValueError):
        ask(**changes)


# --------------------------------------------------------------------------------------------------------- explorer


def bubble(m, p, schedule="1F1B", note=""):
    if m == 64 and p == 8:
        raise RuntimeError("too\nmuch")
    share = (p - 1) / (m + p - 1)
    fig, ax = new_figure(f"{share:.0%} idle", height=160)
    ax.barh([0], [share])
    return View(fig, alt=f"{p} stages", numbers=[(f"{share:.1%}", "idle")], message=note, data={"share": share})


def made(**changes):
    given = {
        "draw": bubble,
        "controls": [
            IntControl(name="m", label="micro-batches", min=1, max=64, default=8),
            IntControl(name="p", label="stages", min=2, max=8, default=4),
            ChoiceControl(name="schedule", label="schedule", options=["1F1B", "GPipe"], default="1F1B"),
            TextControl(name="note", label="note", default="", enabled=lambda v: v["schedule"] == "GPipe"),
        ],
        "presets": [Preset("many", {"m": 60})],
        "goals": [Goal("A bubble under 5%", lambda values, view: view.data["share"] < 0.05)],
        "title": "How many <micro-batches>?",
        "caption": "The bubble.",
    }
    given |= changes
    return explorer(given.pop("draw"), given.pop("controls"), **given)


def test_a_change_is_drawn_and_goals_are_recognised():
    e = made()
    before = e._picture.value
    assert "27.3%" in before and 'alt="4 stages"' in before and "○ A bubble" in e._goals.value
    e._fields["m"].value = 60
    assert "4.8%" in e._picture.value and e._picture.value != before
    assert e.reached == {0} and "✓ A bubble under 5%" in e._goals.value
    e.reset()
    assert e.values == e.defaults and e.reached == {0} and "27.3%" in e._picture.value


def test_a_preset_sets_what_it_names_and_resets_the_rest():
    e = made()
    e.set(p=2)
    button = e.widget.children[3].children[0]
    assert button.description == "many"
    button.click()
    assert e.values == e.defaults | {"m": 60}


def test_a_preset_draws_once():
    calls = []
    e = made(draw=lambda **values: calls.append(values) or bubble(**values))
    calls.clear()
    e.set(m=10, p=3, schedule="GPipe")
    assert len(calls) == 1


def test_an_error_in_draw_is_one_line_and_the_next_setting_draws():
    e = made()
    e.set(m=64, p=8)
    assert "course-explorer-error" in e._picture.value and "RuntimeError: too much" in e._picture.value
    assert "Traceback" not in e._picture.value
    e.set(p=2)
    assert "course-explorer-error" not in e._picture.value


def test_an_error_at_the_default_is_a_bug():
    with pytest.raises(RuntimeError):
        made(draw=lambda **_: bubble(m=64, p=8))


def test_a_control_without_effect_is_disabled():
    e = made()
    assert e._fields["note"].disabled
    e.set(schedule="GPipe")
    assert not e._fields["note"].disabled


def test_at_most_three_controls_are_in_front():
    e = made()
    boxes = [child for child in e.widget.children if "course-explorer-controls" in child._dom_classes]
    assert [len(box.children) for box in boxes] == [3, 1]
    assert boxes[1].layout.display == "none"
    (more,) = [child for child in e.widget.children if "course-explorer-more" in child._dom_classes]
    more.click()
    assert boxes[1].layout.display != "none" and more.description == "Fewer controls"


def test_every_control_has_its_label_and_unit():
    e = made(
        controls=[FloatControl(name="m", label="batch", unit="tokens", min=1, max=9, default=2), *made().controls[1:]]
    )
    assert e._fields["m"].description == "batch (tokens)"
    assert all(field.description for field in e._fields.values())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"goals": [Goal("too easy", lambda values, view: True)]}, "already reached"),
        ({"presets": [Preset("x", {"q": 1})]}, "not controls"),
        ({"controls": [IntControl(name="m", label="m", min=1, max=4, default=2)] * 2}, "one name"),
        ({"draw": lambda **_: View("<p>html</p>", alt="x"), "goals": []}, "still"),
    ],
)
def test_a_wrong_explorer_is_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        made(**changes)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: IntControl(name="m", label="m", min=1, max=4, default=9),
        lambda: FloatControl(name="m", label="m", min=0, max=4, default=1, log=True),
        lambda: ChoiceControl(name="m", label="m", options=["a"], default="b"),
        lambda: IntControl(name="m", label="m", min=4, max=4, default=4),
        lambda: IntControl(name="m", label="m", min=1, max=9, step=2, default=4),
    ],
)
def test_a_wrong_control_is_refused(wrong):
    with pytest.raises(ValueError, match="'m'"):
        wrong()


def test_a_logarithmic_slider_starts_at_its_default():
    field = FloatControl(name="lr", label="rate", min=1e-5, max=1.0, default=1e-3, log=True).build()
    assert field.value == pytest.approx(1e-3)


def test_a_default_between_two_steps_becomes_the_nearest():
    assert FloatControl(name="n", label="n", min=0.1, max=1000, step=0.05, log=True, default=7.079).default == (
        pytest.approx(10**0.85, rel=1e-12)
    )
    assert FloatControl(name="n", label="n", min=0.1, max=3, step=0.05, default=1.01).default == 1.0


def test_the_static_face_is_a_picture_with_alternative_text_and_caption():
    face = made()._face
    assert re.search(r'<img [^>]*src="data:image/png;base64,[^"]+" alt="4 stages"', face)
    assert "course-caption" in face and "27.3%" in face and "How many &lt;micro-batches&gt;?" in face
    assert "<style" not in face and "<svg" not in face and "<script" not in face


def test_the_helper_leaves_the_time_to_draw():
    controls = [IntControl(name="m", label="m", min=1, max=1000, default=1)]
    fig = lambda m: new_figure("x")[0]
    e = explorer(lambda m: View(f"<p>{m}</p>", alt="x"), controls, title="t", caption="c", still=fig)
    best = min(_seconds(lambda m=m: e.set(m=m)) for m in range(2, 30))
    assert best < 0.02


def _seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


# ------------------------------------------------------------------------------------------------------- next token


class Repeats(torch.nn.Module):
    """Expects the last token again: logit 4 for it, 0 for the others."""

    def __init__(self, vocab):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(4.0))
        self.vocab = vocab
        self.seen = []

    def forward(self, tokens):
        self.seen.append(tokens.shape[1])
        return self.scale * torch.nn.functional.one_hot(tokens, self.vocab).float()


def test_reshape_is_softmax_then_top_k():
    logits = np.array([1.0, 3.0, 2.0, 0.0])
    whole = reshape(logits, 1.0, 4)
    assert whole.p == pytest.approx(np.exp(logits) / np.exp(logits).sum())
    assert whole.bits == pytest.approx(-(whole.p * np.log2(whole.p)).sum())
    assert whole.choices == pytest.approx(2**whole.bits)
    cut = reshape(logits, 0.5, 2)
    two = np.exp(np.array([6.0, 4.0]))
    assert cut.p == pytest.approx([0, two[0] / two.sum(), two[1] / two.sum(), 0])
    assert reshape(np.zeros(8), 1.0, 8).bits == pytest.approx(3.0)
    assert reshape(np.array([1e4, 0.0]), 0.1, 2).bits == 0.0


def test_the_next_token_explorer_draws_what_the_model_says():
    tokenizer = BytesTokenizer()
    model = Repeats(tokenizer.vocab_size)
    model.train()
    e = next_token_explorer(model, tokenizer, "ab", context=16)
    share = np.exp(4) / (np.exp(4) + tokenizer.vocab_size - 1)
    assert e.view.data["top"][0] == pytest.approx(share) and f"b {share:.0%}" in e.view.alt
    e.set(prefix="x" * 100)
    assert max(model.seen) == 16 and model.training
    e.set(prefix="")
    assert e.view.alt.endswith("0%") and not e.error
    e.set(prefix="a", temperature=0.1)
    assert e.view.data["top"][0] > 0.99
    cold = e.view.data["bits"]
    e.set(temperature=3.0)
    assert e.view.data["bits"] > cold
    e.set(prefix="ab", temperature=1.0, top_k=1)
    assert e.view.data["top"] == [1.0] and (f"{share:.1%}" in dict(e.view.numbers))
    e.reset()
    assert e.values["top_k"] == tokenizer.vocab_size and "Thin marks" not in e.view.message


def test_goals_of_the_next_token_explorer_can_be_reached_and_are_not_at_once():
    tokenizer = BytesTokenizer()
    e = next_token_explorer(Repeats(tokenizer.vocab_size), tokenizer, "ab")
    temperature = 4 / np.log(tokenizer.vocab_size - 1)
    e.set(temperature=temperature, top_k=200)
    assert e.reached == set()
    e.set(temperature=temperature, top_k=tokenizer.vocab_size)
    assert e.reached == {1}
    e.set(temperature=3.0, top_k=5)
    assert e.reached == {1, 2}


# ------------------------------------------------------------------------------------------------------------ hints


@pytest.fixture
def solutions(tmp_path, monkeypatch):
    cell = nbformat.v4.new_code_cell("def f():\n    ### BEGIN SOLUTION\n    return 1 < 2\n    ### END SOLUTION")
    cell.metadata["course"] = {"exercise": "unequal-tokens", "position": "03.2", "hints": ["idea", "where", "how"]}
    (tmp_path / "solutions").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "solutions" / "03_x.ipynb")
    monkeypatch.setattr(hints, "material_dir", lambda: tmp_path)


def test_hints_come_one_at_a_time(solutions, capsys):
    h = hint("unequal-tokens")
    assert "python3 start.py hint 03.2" in capsys.readouterr().out
    assert "idea" not in h._text.value
    h.next()
    assert "idea" in h._text.value and "where" not in h._text.value
    h.next(), h.next()
    assert "how" in h._text.value and h._next.disabled


def test_the_reference_opens_after_a_pass(solutions, monkeypatch):
    monkeypatch.setattr(core, "PASSED", set(), raising=False)
    h = hint("unequal-tokens")
    h.reference()
    assert "return 1" not in h._text.value
    core.PASSED.add("unequal-tokens")
    h.reference()
    assert "return 1 &lt; 2" in h._text.value and "BEGIN" not in h._text.value


def test_an_exercise_without_hints_is_said_in_a_line(solutions, capsys):
    assert hint("nothing") is None
    assert "unequal-tokens" in capsys.readouterr().out


# ----------------------------------------------------------------------------------------------- in a real kernel


SETUP = """
from course_lib.widgets import *
from course_lib.figures.style import new_figure
from course_lib.events import *
"""
CELLS = {
    "setup": SETUP,
    "show": "fig, ax = new_figure('The finding'); _ = ax.plot([0, 1]); show(fig, 'What it `shows`.')",
    "predict": "predict('What?', ['a', 'b'], answer=1)",
    "reveal": "guess = predict('Which?', ['a', 'b'], answer=1)\nguess.reveal()",
    "explorer": "e = explorer(lambda m: View(new_figure(f'{m}')[0], alt='alt'), "
    "[IntControl(name='m', label='m', min=1, max=9, default=3)], title='t', caption='c')\ne",
    "again": "e",
    "watch": "w = watch('A run')\nw(Started(0, 3, 10, 'cpu', 'fp32'))\n"
    "for i in range(3): w(Stepped(StepRecord(i, 3.0 - i, 1.0, 1e-3, 8, 0.01)))\n"
    "w(Finished(TrainResult(3, 1.0, 1.5, 800.0, 0.03, 10)))",
}


@pytest.fixture(scope="module")
def kernel_outputs(tmp_path_factory):
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    folder = str(tmp_path_factory.mktemp("kernel"))
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}}, store_widget_state=False).execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def test_nothing_goes_to_stderr(kernel_outputs):
    assert not [out for outs in kernel_outputs.values() for out in outs if out.output_type in ("stream", "error")]


def test_a_picture_is_png_with_size_and_its_caption_follows(kernel_outputs):
    picture, caption = kernel_outputs["show"]
    assert picture.metadata["image/png"]["width"] == 800 and "The finding" in picture.data["text/plain"]
    assert "image/svg+xml" not in picture.data
    assert caption.data["text/plain"] == "What it `shows`." and "<code>shows</code>" in caption.data["text/html"]


@pytest.mark.parametrize("name", ["predict", "explorer", "again"])
def test_a_widget_is_one_output_with_two_faces(kernel_outputs, name):
    (output,) = kernel_outputs[name]
    assert set(output.data) == {VIEW, "text/html", "text/plain"}
    assert "course-static" in output.data["text/html"] and "VBox" not in output.data["text/plain"]


def test_the_answer_is_in_no_output(kernel_outputs):
    texts = [str(out.data.get("text/html")) for out in kernel_outputs["reveal"]]
    assert "no prediction" in texts[1] and "<b>b</b>" not in "".join(texts)


def test_a_watched_run_leaves_a_picture_and_its_caption(kernel_outputs):
    picture, caption = kernel_outputs["watch"]
    assert set(picture.data) == {"image/png", "text/plain"} and "from 3.00 to" in picture.data["text/plain"]
    assert "course-caption" in caption.data["text/html"]


def test_outside_a_notebook_a_run_is_a_bar_and_a_line(capsys):
    w = watch("A run")
    w(Started(0, 2, 10, "cpu", "fp32"))
    for step in range(2):
        w(Stepped(StepRecord(step, 3.0 - step, 1.0, 1e-3, 8, 0.01)))
    w(Finished(TrainResult(2, 2.0, 1.5, 800.0, 0.02, 10)))
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and "from 3.00 to 2.50 nats a token" in out and "1.50 bits a byte" in out
    assert "2/2" in err


def test_a_watched_run_can_keep_bits_a_byte_to_itself(capsys):
    w = watch("A run", per_byte=False)
    w(Started(0, 1, 10, "cpu", "fp32"))
    w(Stepped(StepRecord(0, 3.0, 1.0, 1e-3, 8, 0.01)))
    w(Validated(1, Validation(2.9, 1.5, 8)))
    w(Finished(TrainResult(1, 3.0, 1.5, 800.0, 0.02, 10)))
    out, err = capsys.readouterr()
    assert "2.90 nats a token, validation" in out and "bits" not in out + err and "1.50" not in out


def test_a_saved_widget_keeps_its_static_face_only():
    two = {"data": {VIEW: {}, "text/html": "<p>x</p>", "text/plain": "x"}}
    bar = {"data": {VIEW: {}, "text/plain": "x"}}
    model = {"type": "notebook", "content": {"cells": [{"cell_type": "code", "outputs": [two, bar]}, {"source": "x"}]}}
    keep_static_faces(model=model, path="x", contents_manager=None)
    assert set(two["data"]) == {"text/html", "text/plain"} and VIEW in bar["data"]
    keep_static_faces({"type": "file", "content": "text"})


def test_rich_text_is_escaped():
    assert faces.rich("a < b `x<y` **z**") == "a &lt; b <code>x&lt;y</code> <b>z</b>"
