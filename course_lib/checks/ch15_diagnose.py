"""Capstone 15.9: an incident, diagnosed in the order of suspicion: first check, fault, remedy, and what does harm."""

from functools import partial
from typing import Any

from course_lib.checks._ch15_bank import OPTIMIZER, SYMPTOMS, SYSTEM, Suspect
from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.ch15_parts import Letter, judge_parts
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["DIAGNOSE", "diagnose_text", "incident"]

RESTART = "start the run again from its beginning, same code and data"
SOUND = (
    "write down the step, the last good checkpoint and the finding",
    "keep log and checkpoints of the incident until it is explained",
    "after the repair, compare some steps with those of the run before, on the same batches",
    "ask what was changed in code, data and machines since it was last well",
    "make the check that found it a part of every start",
    "look whether the checkpoint to go back to has the fault in it already",
    "tell those who took numbers or checkpoints from this run since then",
    "delete no older checkpoint until the repair has held",
)
"""Three of them stand beside the act that does harm."""
LETTERS = "ABCDEFGH"
USUAL = {"loss": 2.41, "val_loss": 2.47, "grad_norm": 0.38, "update_ratio": 0.0011, "step_seconds": 9.2}
"""Dashboards of a run that is well. Learning rate and memory move in none of these incidents."""


def incident(variant: int) -> dict[str, Any]:
    """Dashboards before and after, checks with minutes and findings, and the four right letters."""
    rng = variant_rng("capstone-diagnose", variant)
    symptom = SYMPTOMS[variant % len(SYMPTOMS)]
    suspects = symptom.suspects
    culprit = suspects[_dealt("capstone-diagnose", variant // len(SYMPTOMS), variant % len(SYMPTOMS), len(suspects))]
    moves_loss = "step_seconds" not in symptom.moved
    others = [one for other in SYMPTOMS for one in other.suspects if one not in suspects]
    strange = [one for one in others if (one.kind == SYSTEM and one in SYMPTOMS[2].suspects) == moves_loss]
    if not moves_loss:
        strange = [one for one in strange if one.kind <= OPTIMIZER]
    out = [strange[int(k)] for k in rng.choice(len(strange), 2, replace=False)]
    rows: list[tuple[Suspect | None, int]] = list(zip(suspects, _minutes(rng, suspects), strict=True))
    rows += [(one, int(rng.integers(1, 4)) if n == 0 else one.minutes) for n, one in enumerate(out)] + [(None, 300)]
    checks = {LETTERS[place]: rows[int(k)] for place, k in enumerate(rng.permutation(len(rows)))}
    own = {letter: (one, minutes) for letter, (one, minutes) in checks.items() if one is not None and one in suspects}
    first = min(own, key=lambda letter: (own[letter][0].kind, own[letter][1]))
    findings = {
        letter: "not made" if one is None else (one.faulty if one is culprit else one.sound)(rng)
        for letter, (one, _) in checks.items()
    }
    faults = _lettered(rng, [one.fault for one in suspects])
    remedies = _lettered(rng, [one.remedy for one in suspects])
    acts = _lettered(rng, [culprit.harm, *(SOUND[int(k)] for k in rng.choice(len(SOUND), 3, replace=False))])
    size = float(rng.uniform(0.85, 1.15))
    before = {name: value * size for name, value in USUAL.items()}
    after = {
        name: value * symptom.moved.get(name, 1.0) * (1 + 0.004 * float(rng.uniform(-1, 1)))
        for name, value in before.items()
    }
    return {
        "symptom": symptom,
        "before": before,
        "after": after,
        "checks": checks,
        "own": own,
        "out": out,
        "findings": findings,
        "faults": faults,
        "remedies": remedies,
        "acts": acts,
        "first": first,
        "fault": _letter_of(faults, culprit.fault),
        "remedy": _letter_of(remedies, culprit.remedy),
        "never": _letter_of(acts, culprit.harm),
        "culprit": culprit,
    }


def _dealt(exercise: str, turn: int, which: int, size: int) -> int:
    """One of `size`, in the `turn`-th incident of symptom `which`: each once in `size` turns, in no fixed order."""
    order = variant_rng(f"{exercise}/symptom {which}", turn // size).permutation(size)
    return int(order[turn % size])


def _minutes(rng: Any, suspects: tuple[Suspect, ...]) -> list[int]:
    """Minutes of each check: those of a kind are dealt out anew, so that which of them is the cheap one is no rule."""
    dealt: dict[str, int] = {}
    for kind in {one.kind: None for one in suspects}:
        own = [one for one in suspects if one.kind == kind]
        for one, place in zip(own, rng.permutation(len(own)), strict=True):
            dealt[one.check] = own[int(place)].minutes + int(rng.integers(0, 3))
    return [dealt[one.check] for one in suspects]


def _lettered(rng: Any, texts: list[str]) -> dict[str, str]:
    return {LETTERS[place]: texts[int(k)] for place, k in enumerate(rng.permutation(len(texts)))}


def _letter_of(texts: dict[str, str], wanted: str) -> str:
    return next(letter for letter, text in texts.items() if text == wanted)


def diagnose_text(variant: int) -> str:
    """What `question` prints."""
    run = incident(variant)
    lines = ["dashboard         before         now", *(f"{name:13} {_row(run, name)}" for name in run["before"])]
    lines += ["learning rate and memory: as planned, and as ever", run["symptom"].end, ""]
    lines += ["checks, the minutes that each takes, and what it showed (in the end all but one were made)"]
    for letter, (one, minutes) in run["checks"].items():
        lines += [
            f'  "{letter}" {minutes:4} min  {RESTART if one is None else one.check}',
            f"               -> {run['findings'][letter]}",
        ]
    for title, what in (("faults", "faults"), ("remedies", "remedies"), ("acts", "acts")):
        lines += ["", title, *(f'  "{letter}" {text}' for letter, text in run[what].items())]
    lines += [
        "",
        "first:  the check that should have been made first: in the order of suspicion (data and mask, numerics,",
        "        optimizer, system), within a kind the cheap one. What makes a step take longer is system. A dashboard",
        "        that is as ever rules out the checks of what it would show, and a check that measures nothing is none",
        "fault:  which of the faults it is, by the findings",
        "remedy: what mends it",
        "never:  which of the acts does harm here",
        "Four letters in quotes",
    ]
    return "\n".join(line for n, line in enumerate(lines) if line or lines[n - 1])


def _row(run: dict[str, Any], name: str) -> str:
    return f"{run['before'][name]:10.4g}  {run['after'][name]:10.4g}"


def diagnose_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Letters, exact."""
    run = incident(returned["variant"])
    return judge_parts(
        returned,
        [
            Letter("first", run["first"], "".join(run["checks"]), partial(_wrong_first, run)),
            Letter("fault", run["fault"], "".join(run["faults"]), partial(_wrong_fault, run)),
            Letter("remedy", run["remedy"], "".join(run["remedies"]), partial(_wrong_remedy, run)),
            Letter("never", run["never"], "".join(run["acts"]), _wrong_never),
        ],
        DIAGNOSE.misconceptions,
    )


def _wrong_first(run: dict[str, Any], given: str) -> Wrong:
    one, minutes = run["checks"][given]
    if one is None:
        return Wrong(f"{given} costs most and measures nothing", "restart-first")
    if given not in run["own"]:
        if minutes == min(other for _, other in run["checks"].values()):
            return Wrong(
                f"{given} is cheap. Which dashboard would show its fault, and what does that one do?", "cheapest-first"
            )
        return Wrong(f"{given}: which dashboard would show its fault, and what does that one do?", "check-everything")
    if one is run["culprit"]:
        text = f"{given} found it, as is known now. Before any was made, what lay upstream of it, or cost less?"
        return Wrong(text, "hindsight-is-an-order")
    if one.kind == SYSTEM and run["own"][run["first"]][0].kind != SYSTEM:
        return Wrong(f"{given} looks at the machine. What lies upstream of it?", "from-the-machine-up")
    if one.kind == run["own"][run["first"]][0].kind:
        return Wrong(f"{given} is of the right kind; another one of that kind costs less", "cost-does-not-matter")
    return Wrong(f"{given}: what lies upstream of it is not cleared yet", "any-order-will-do")


def _wrong_fault(run: dict[str, Any], given: str) -> Wrong:
    return Wrong(f"{given}: find the check that would show it, and read what that one found", "sound-findings-accuse")


def _wrong_remedy(run: dict[str, Any], given: str) -> Wrong:
    return Wrong(f"{given} mends another fault: what is broken here, and from which step on?", "any-remedy-will-do")


def _wrong_never(given: str) -> Wrong:
    return Wrong(
        f"{given} does no harm: it costs minutes, and somebody will need it. Which act hides the fault?",
        "notes-cost-time",
    )


DIAGNOSE = Exercise(
    id="capstone-diagnose",
    title="Capstone: diagnose",
    cases=one_case("your four letters"),
    run=answer_run,
    judge=diagnose_judge,
    misconceptions={
        "restart-first": "a restart is a check",
        "cheapest-first": "the cheapest check comes first, whatever it is about",
        "check-everything": "every check may help",
        "hindsight-is-an-order": "the check that found it should have come first",
        "from-the-machine-up": "the machine is to be cleared before what runs on it",
        "cost-does-not-matter": "within a kind any order is as good",
        "any-order-will-do": "as long as all are made, the order does not matter",
        "sound-findings-accuse": "a fault that fits the symptom is the fault",
        "any-remedy-will-do": "what helps against one fault helps against its neighbour",
        "notes-cost-time": "in an incident there is no time for notes",
    },
)
