"""What the notebooks call to show things: pictures, predictions, explorers, live training, hints."""

from course_lib.widgets.live import watch
from course_lib.widgets.predict import predict
from course_lib.widgets.show import show

__all__ = ["predict", "show", "watch"]
