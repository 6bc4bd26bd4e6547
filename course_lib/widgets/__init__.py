"""What the notebooks call to show things: pictures, predictions, explorers, live training, hints."""

from course_lib.widgets.accumulator import accumulator_explorer
from course_lib.widgets.batch_calculator import batch_calculator
from course_lib.widgets.bubble import bubble_explorer
from course_lib.widgets.capacity import capacity_explorer
from course_lib.widgets.checkpoint_explorer import checkpoint_explorer
from course_lib.widgets.controls import ChoiceControl, FloatControl, IntControl, TextControl
from course_lib.widgets.crossover import crossover_explorer
from course_lib.widgets.diagnosis import diagnosis_table
from course_lib.widgets.explorer import Goal, Preset, View, explorer
from course_lib.widgets.hints import hint
from course_lib.widgets.incident import incident_simulator
from course_lib.widgets.live import watch
from course_lib.widgets.mesh import mesh_explorer
from course_lib.widgets.next_token import next_token_explorer
from course_lib.widgets.predict import predict
from course_lib.widgets.recompute import recompute_explorer
from course_lib.widgets.ring import ring_explorer
from course_lib.widgets.rounding import value_explorer
from course_lib.widgets.routing import routing_explorer
from course_lib.widgets.show import show
from course_lib.widgets.training_state import training_state_explorer

__all__ = [
    "ChoiceControl",
    "FloatControl",
    "Goal",
    "IntControl",
    "Preset",
    "TextControl",
    "View",
    "accumulator_explorer",
    "batch_calculator",
    "bubble_explorer",
    "capacity_explorer",
    "checkpoint_explorer",
    "crossover_explorer",
    "diagnosis_table",
    "explorer",
    "hint",
    "incident_simulator",
    "mesh_explorer",
    "next_token_explorer",
    "predict",
    "recompute_explorer",
    "ring_explorer",
    "routing_explorer",
    "show",
    "training_state_explorer",
    "value_explorer",
    "watch",
]
