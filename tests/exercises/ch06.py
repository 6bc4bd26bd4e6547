"""Stated answers of chapter 6: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import copy
import math
from itertools import pairwise

import torch
from mutants import right, wrong

from course_lib.checks import ch06_run
from course_lib.checks.ch06_questions import ASKED, left_out, weights_only

# 06.1 how large is a checkpoint?


def _size(tensors, weights, optimizer, rule=""):
    weight = 2 if weights == "bf16" else 4
    total = 0
    for tensor in tensors:
        if tensor["tied"] and rule != "ties":
            continue
        n = math.prod(tensor["shape"])
        total += weight * n
        if not tensor["trained"] and rule != "frozen":
            continue
        total += weight * n if rule == "gradients" else 0
        total += 4 * n if weights == "bf16" and rule not in ("masters", "weights") else 0
        if optimizer == "adamw" and rule != "weights":
            moment = weight if rule == "moments" else 4
            total += moment * n * (1 if rule == "one" else 2)
            total += 0 if rule == "count" else 4 * (n if rule == "counts" else 1)
    return total


def _sized(rule, misconception=None, says=""):
    return wrong("checkpoint-size", misconception, says=says, answer=lambda t, w, o: _size(t, w, o, rule))


wrong_saves_gradients = _sized("gradients", "gradients-are-saved")
wrong_saves_weights = _sized("weights", "weights-are-the-state")
wrong_one_average = _sized("one", "one-moment")
wrong_ties_twice = _sized("ties", "every-name-is-a-tensor")
wrong_frozen_counted = _sized("frozen", "frozen-tensors-have-moments")
wrong_no_masters = _sized("masters", "masters-can-be-made-again")
wrong_small_averages = _sized("moments", "moments-in-16-bit")
wrong_no_step_counts = _sized("count", says="a step count for each tensor")
wrong_a_count_a_parameter = _sized("counts", says="not for a parameter")


@wrong("checkpoint-size", says="nothing came back")
def wrong_size_forgets_return(tensors, weights, optimizer):
    _size(tensors, weights, optimizer)


@right("checkpoint-size")
def right_by_file(tensors, weights, optimizer):
    stored = {t["name"]: math.prod(t["shape"]) for t in tensors if t["tied"] is None}
    trained = [stored[t["name"]] for t in tensors if t["trained"] and t["tied"] is None]
    files = {"model": (2 if weights == "bf16" else 4) * sum(stored.values())}
    files["masters"] = 4 * sum(trained) if weights == "bf16" else 0
    files["optimizer"] = sum(8 * n + 4 for n in trained) if optimizer == "adamw" else 0
    return sum(files.values())


# 06.2 three forgotten things


def _save(run):
    parts = ("model", "optimizer", "scheduler", "scaler")
    state = {name: getattr(run, name).state_dict() for name in parts}
    return state | {"cursor": run.cursor, "random": run.generator.get_state()}


def _load(run, saved, left=()):
    for name in ("model", "optimizer", "scheduler", "scaler"):
        if name not in left:
            getattr(run, name).load_state_dict(saved[name])
    if "cursor" not in left:
        run.cursor = saved["cursor"]
    if "random" not in left:
        run.generator.set_state(saved["random"])


def _forgets(*left, misconception, says=""):
    answer = {"save": _save, "load": lambda run, saved: _load(run, saved, left)}
    return wrong("three-forgotten", misconception, says=says, answer=answer)


wrong_as_its_author_left_it = _forgets(
    "scheduler", "scaler", "random", misconception="random-state-is-a-seed", says="not the only thing"
)
wrong_no_random_state = _forgets("random", misconception="random-state-is-a-seed")
wrong_no_schedule = _forgets("scheduler", misconception="the-optimizer-knows-the-rate")
wrong_no_scaler = _forgets("scaler", misconception="a-scale-finds-itself")
wrong_no_optimizer = _forgets("optimizer", misconception="weights-are-the-state")
wrong_no_cursor = _forgets("cursor", misconception="data-order-does-not-matter")
wrong_nothing_loaded = _forgets(
    "model", "optimizer", "scheduler", "scaler", "cursor", "random", misconception="weights-are-the-state"
)


def _seeded(run, saved):
    _load(run, saved, ("random",))
    run.generator.manual_seed(saved["cursor"])


def _counted(run, saved):
    _load(run, saved, ("scheduler",))
    run.scheduler.last_epoch = saved["cursor"]


def _only_the_scale(run, saved):
    _load(run, saved, ("scaler",))
    run.scaler.load_state_dict(run.scaler.state_dict() | {"scale": saved["scaler"]["scale"]})


wrong_seeds_again = wrong("three-forgotten", says="1 step after the resume", answer={"save": _save, "load": _seeded})
wrong_schedule_by_batches = wrong(
    "three-forgotten", "the-schedule-counts-batches", answer={"save": _save, "load": _counted}
)
wrong_scale_alone = wrong("three-forgotten", "a-scale-is-one-number", answer={"save": _save, "load": _only_the_scale})
wrong_saves_objects = wrong(
    "three-forgotten",
    "objects-can-be-saved",
    answer={
        "save": lambda run: _save(run) | {"scaler": run.scaler},
        "load": lambda run, saved: _load(run, saved | {"scaler": saved["scaler"].state_dict()}),
    },
)
wrong_asks_the_judge = wrong(
    "three-forgotten",
    says="write it yourself",
    answer={"save": _save, "load": lambda run, saved: ch06_run.restore(run, saved)},
)


def _by_hand(run):
    return {
        "weights": [p.detach().clone() for p in run.model.parameters()],
        "optimizer": copy.deepcopy(run.optimizer.state_dict()),
        "schedule": run.scheduler.last_epoch,
        "scale": run.scaler.state_dict(),
        "at": [run.cursor, run.generator.get_state().tolist()],
    }


@torch.no_grad()
def _back_by_hand(run, saved):
    for p, w in zip(run.model.parameters(), saved["weights"], strict=True):
        p.copy_(w)
    run.scaler.load_state_dict(saved["scale"])
    run.scheduler.last_epoch = saved["schedule"]
    run.optimizer.load_state_dict(saved["optimizer"])
    run.cursor = saved["at"][0]
    run.generator.set_state(torch.tensor(saved["at"][1], dtype=torch.uint8))


_BESIDE = []


def _save_beside(run):
    _BESIDE.append(copy.deepcopy(_save(run)))
    return {"number": len(_BESIDE) - 1}


@torch.no_grad()
def _save_and_change(run):
    state = copy.deepcopy(_save(run))
    next(run.model.parameters()).mul_(0.5)
    return state


wrong_keeps_it_in_memory = wrong(
    "three-forgotten",
    "memory-outlives-the-process",
    answer={"save": _save_beside, "load": lambda run, saved: _load(run, _BESIDE[saved["number"]])},
)
wrong_changes_the_run = wrong(
    "three-forgotten", says="changed the run that it saved", answer={"save": _save_and_change, "load": _load}
)
wrong_draws_while_saving = wrong(
    "three-forgotten",
    says="changed the run that it saved",
    answer={"save": lambda run: _save(run) | {"draw": torch.rand((), generator=run.generator)}, "load": _load},
)
wrong_save_forgets_return = wrong(
    "three-forgotten", says="Does it end in a `return`?", answer={"save": lambda run: None, "load": _load}
)
wrong_forgets_brackets = wrong(
    "three-forgotten",
    says="are its brackets missing?",
    answer={"save": lambda run: _save(run) | {"scaler": run.scaler.state_dict}, "load": _load},
)
wrong_nothing_missing_said = _forgets(
    "model", "scheduler", misconception="weights-are-the-state", says="is taken. It is not the only thing"
)
right_by_hand = right("three-forgotten", answer={"save": _by_hand, "load": _back_by_hand})

# 06.3 the drill


def _flat(run):
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def _drill(make, save, load, stops, steps, rule=""):
    whole, run = make(), make()
    losses, offset = [], 0
    for done in range(steps + 1):
        if done in stops and not (rule == "once" and done != stops[-1]):
            saved = save(run)
            if rule != "in place":
                run = make()
            load(run, saved)
        a, b = _flat(whole), _flat(run)
        same = torch.allclose(a, b) if rule == "close" else torch.equal(a, b)
        if rule == "end":
            same = same or done < steps
        if rule == "losses":
            same = all(x == y for x, y in losses)
        if not same:
            return done + offset - (rule == "early")
        if done < steps:
            losses.append((whole.step(), run.step()))
    return None


def _drilled(rule, misconception, says=""):
    def drill(make, save, load, stops, steps):
        return _drill(make, save, load, stops, steps, rule)

    return wrong("first-difference", misconception, says=says, answer=drill)


wrong_allclose = _drilled("close", "nearly-is-equal")
wrong_in_place = _drilled("in place", "resumes-in-place")
wrong_stops_once = _drilled("once", "once-is-enough")
wrong_looks_at_the_end = _drilled("end", "compares-the-end")
wrong_looks_at_losses = _drilled("losses", "losses-are-the-state")
wrong_numbers_the_step = _drilled("early", "counts-from-the-step")


def _compares(same, name):
    def drill(make, save, load, stops, steps):
        whole, run = make(), make()
        for done in range(steps + 1):
            if done in stops:
                saved, run = save(run), make()
                load(run, saved)
            if not same(list(whole.model.parameters()), list(run.model.parameters())):
                return done
            if done < steps:
                whole.step(), run.step()

    drill.__name__ = name
    return drill


def _compared(same, misconception=None, says="every number"):
    return wrong("first-difference", misconception, says=says, answer=_compares(same, "drill"))


wrong_last_tensor_alone = _compared(lambda one, other: torch.equal(one[-1], other[-1]))
wrong_biases_alone = _compared(lambda one, other: all(map(torch.equal, one[1::2], other[1::2])))
wrong_sums = _compared(
    lambda one, other: all(p.double().sum() == q.double().sum() for p, q in zip(one, other, strict=True))
)
wrong_small_distance = _compared(
    lambda one, other: all((p - q).abs().sum() < 1e-9 for p, q in zip(one, other, strict=True)),
)
right_exact_distance = right(
    "first-difference",
    answer=_compares(lambda one, other: all(bool((p == q).all()) for p, q in zip(one, other, strict=True)), "drill"),
)


def _looped(
    make, save, load, stops, steps, last=0, resumes=lambda done, stops, steps: done in stops, late=False, of="run"
):
    whole, run, first = make(), make(), None
    for done in range(steps + 1 + last):
        if resumes(done, stops, steps):
            saved = first if of == "first" and first else save(whole if of == "whole" else run)
            run, first = make(), saved
            load(run, saved)
        if not (late and done in stops) and not torch.equal(_flat(whole), _flat(run)):
            return done
        if done < steps + last:
            whole.step(), run.step()


def _loops(says, misconception=None, **rules):
    def drill(make, save, load, stops, steps):
        return _looped(make, save, load, stops, steps, **rules)

    return wrong("first-difference", misconception, says=says, answer=drill)


wrong_never_compares_at_the_end = _loops("When do you last compare?", last=-1)
wrong_a_step_too_many = _loops("Does a run take one too many?", last=1)
wrong_no_stop_at_the_end = _loops(
    "the last stop comes when all steps are done",
    resumes=lambda done, stops, steps: done in stops and done < steps,
)
wrong_not_after_the_load = _loops("Do you compare there", late=True)
wrong_saves_the_other_run = _loops("never resumed", of="whole")
wrong_loads_the_first_save = _loops("got the first save again", of="first")
wrong_stops_one_early = _loops("the stops say", resumes=lambda done, stops, steps: done + 1 in stops)


@wrong("first-difference", says="`load` was never called")
def wrong_does_nothing(make, save, load, stops, steps):
    return None


@wrong("first-difference", says="the stops say")
def wrong_stops_are_lengths(make, save, load, stops, steps):
    ends = [sum(stops[: n + 1]) for n in range(len(stops))]
    return _looped(make, save, load, ends, max(steps, ends[-1]))


@wrong("first-difference", says="there is none")
def wrong_second_run_is_the_same(make, save, load, stops, steps):
    return stops[-1]


@wrong("first-difference", says="yours is a bool")
def wrong_says_whether(make, save, load, stops, steps):
    return _drill(make, save, load, stops, steps) is None


@wrong("first-difference", says="write it yourself")
def wrong_calls_the_judge(make, save, load, stops, steps):
    return ch06_run.first_difference([], [])


@right("first-difference")
def right_with_two_lists(make, save, load, stops, steps):
    def weights(run, count):
        out = []
        for _ in range(count):
            run.step()
            out.append(copy.deepcopy(list(run.model.parameters())))
        return out

    whole = weights(make(), steps)
    run, resumed = make(), []
    for begin, end in pairwise([0, *stops, steps]):
        if begin:
            saved, run = save(run), make()
            load(run, saved)
            resumed[begin - 1] = copy.deepcopy(list(run.model.parameters()))
        resumed += weights(run, end - begin)
    for done, (one, other) in enumerate(zip(whole, resumed, strict=True), start=1):
        if not all(torch.equal(a, b) for a, b in zip(one, other, strict=True)):
            return done
    return None


# 06.4 which part was left out


def _part(variant, exchanged=(), **changes):
    book = left_out(variant)
    letters = dict(book["letters"])
    if exchanged:
        one, other = exchanged
        letters[one], letters[other] = letters[other], letters[one]
    choice = "".join(letters[part] for part in ASKED)
    return {"variant": variant, "choice": choice, "evidence": book["evidence"], **changes}


wrong_random_for_data = wrong("which-part", "random-and-data-are-one", answer=_part(0, ("generator", "cursor")))
wrong_schedule_first = wrong("which-part", "the-rate-is-lost-at-once", answer=_part(1, ("optimizer", "scheduler")))
wrong_scaler_early = wrong("which-part", "the-scale-changes-every-step", answer=_part(2, ("optimizer", "scaler")))
wrong_optimizer_at_once = wrong("which-part", "the-optimizer-shows-at-once", answer=_part(3, ("optimizer", "cursor")))
wrong_schedule_at_once = wrong("which-part", says="did not lose its schedule", answer=_part(4, ("scheduler", "cursor")))
wrong_rate_of_step_0 = wrong(
    "which-part", "counts-from-the-resume", answer=_part(0, evidence=left_out(0)["evidence"] / 2)
)
_long = left_out(1)
wrong_rate_of_the_whole_run = wrong(
    "which-part",
    "the-optimizer-knows-the-rate",
    answer=_part(1, evidence=_long["peak"] * 0.97 ** (_long["stop"] + 1 - _long["warmup"])),
)
wrong_rate_by_chance = wrong("which-part", says="the rate is not", answer=_part(2, evidence=1.0))
wrong_letters_twice = wrong("which-part", says="A to E once", answer=_part(0, choice="ABCDA"))
wrong_no_rate = wrong("which-part", says="still empty", answer=_part(0, evidence=None))
right_other_variants = right("which-part", answer=_part(7))
right_letters_as_a_list = right("which-part", answer=_part(3, choice=list(_part(3)["choice"].lower())))

# 06.5 an order that survives a power cut


def _order(files, old, rule=""):
    write = [("write", f"new/{name}") for name in files]
    sync = [] if rule == "no file sync" else [("sync", f"new/{name}") for name in files]
    names = [] if rule == "no name sync" else [("sync", "new")]
    marker = [("write", "new/COMPLETE"), ("sync", "new/COMPLETE"), ("sync", "new"), ("sync", ".")]
    if rule == "marker bytes":
        marker = [row for row in marker if row != ("sync", "new/COMPLETE")]
    if rule == "folder":
        marker = marker[:-1]
    if rule == "marker":
        marker = marker[:1]
    gone = [("remove", old)] if old and rule != "both" else []
    if rule == "marker first":
        return [("make", "new"), *marker, *write, *sync, *names, *gone]
    if rule == "room first":
        return [*gone, ("make", "new"), *write, *sync, *names, *marker]
    return [("make", "new"), *write, *sync, *names, *marker, *gone]


def _ordered(rule, misconception=None, says=""):
    return wrong("crash-safe-order", misconception, says=says, answer=lambda files, old: _order(files, old, rule))


wrong_marker_first = _ordered("marker first", "the-marker-announces")
wrong_no_file_sync = _ordered("no file sync", "written-is-on-the-disk")
wrong_no_name_sync = _ordered("no name sync", "a-synced-file-has-a-name")
wrong_marker_not_synced = _ordered("marker", "the-marker-needs-no-sync")
wrong_marker_bytes_not_synced = _ordered("marker bytes", "the-marker-needs-no-sync", "not yet safe: the marker's bytes")
wrong_folder_not_synced = _ordered("folder", "the-marker-needs-no-sync", "not yet safe: the name of the folder")
wrong_room_first = _ordered("room first", "room-first")
wrong_keeps_both = _ordered("both", says="only the new one is to be kept")


@wrong("crash-safe-order", "room-first")
def wrong_removes_before_the_marker(files, old):
    rows = _order(files, None)
    return [*rows[:-4], *([("remove", old)] if old else []), *rows[-4:]]


@wrong("crash-safe-order", says="there is no COMPLETE")
def wrong_without_a_marker(files, old):
    return [row for row in _order(files, None) if "COMPLETE" not in row[1]]


@wrong("crash-safe-order", says="has been removed already")
def wrong_removes_twice(files, old):
    return _order(files, old) + ([("remove", old)] if old else [])


@wrong("crash-safe-order", says="only the older checkpoint, as a whole")
def wrong_removes_a_fixed_name(files, old):
    return _order(files, "old" if old else None)


@wrong("crash-safe-order", says="the marker stands in the folder")
def wrong_marker_beside_the_folder(files, old):
    return [(word, path.replace("new/COMPLETE", "COMPLETE")) for word, path in _order(files, old)]


@wrong("crash-safe-order", says="there is no older checkpoint here")
def wrong_removes_nothing(files, old):
    return _order(files, "old")


@wrong("crash-safe-order", says="no folder `new` of yours yet")
def wrong_makes_no_folder(files, old):
    return _order(files, old)[1:]


@wrong("crash-safe-order", says="return a list of (operation, path) pairs")
def wrong_order_forgets_return(files, old):
    _order(files, old)


@wrong("crash-safe-order", says="`fsync` is no operation")
def wrong_other_words(files, old):
    return [("fsync" if word == "sync" else word, path) for word, path in _order(files, old)]


@right("crash-safe-order")
def right_file_by_file(files, old):
    rows = [("make", "new"), ("sync", ".")]
    for name in reversed(files):
        rows += [("write", f"new/{name}"), ("sync", f"new/{name}"), ("sync", "new/")]
    rows += [("write", "new/COMPLETE"), ("sync", "new"), ("sync", "new/COMPLETE"), ("sync", ".")]
    return tuple(rows + ([("remove", old), ("sync", ".")] if old else []))


# 06.6 from the weights alone


def _alone(variant, **changes):
    book = weights_only(variant)
    return {"variant": variant, "choice": book["choice"], "evidence": book["evidence"], **changes}


def _guess(variant, key, misconception):
    return wrong("weights-only", misconception, answer=_alone(variant, evidence=weights_only(variant)[key]))


wrong_same_direction = wrong("weights-only", "an-update-follows-its-gradient", answer=_alone(0, choice="A"))
wrong_other_direction = wrong("weights-only", "an-update-follows-its-gradient", answer=_alone(1, choice="B"))
wrong_at_the_peak = _guess(0, "no warm-up", "the-schedule-is-in-the-weights")
wrong_not_corrected = _guess(1, "raw", "no-bias-correction")
wrong_upside_down = _guess(2, "inverse", "upside-down")
wrong_old_averages = _guess(3, "old averages", "the-averages-are-in-the-weights")
wrong_by_the_gradient = _guess(4, "by the gradient", "updates-follow-gradients")
wrong_ratio_by_chance = wrong("weights-only", says="write down both moves", answer=_alone(5, evidence=77.0))
wrong_old_move_not_corrected = wrong(
    "weights-only", says="start at zero too", answer=_alone(0, evidence=weights_only(0)["old raw"])
)
wrong_negative = wrong("weights-only", says="not negative", answer=_alone(0, evidence=-weights_only(0)["evidence"]))
wrong_quoted = wrong("weights-only", says="without quotes", answer=_alone(0, evidence="0.3"))
wrong_direction_in_words = wrong("weights-only", says="`choice` is A or B", answer=_alone(0, choice="opposite"))
right_roughly = right("weights-only", answer=_alone(3, evidence=round(weights_only(3)["evidence"], 2)))
right_small_letter = right("weights-only", answer=_alone(6, choice=weights_only(6)["choice"].lower()))
