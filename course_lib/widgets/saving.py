"""What a saved notebook keeps of a widget: its static face.

A learner's own notebook is trusted. Opened again without its kernel, JupyterLab would prefer the live view, whose model
is gone, and show "Error displaying widget: model not found". So the server drops the live view while it saves; the open
page keeps it.
"""

from __future__ import annotations

from typing import Any

__all__ = ["keep_static_faces"]

_VIEW = "application/vnd.jupyter.widget-view+json"


def keep_static_faces(model: dict[str, Any], **_: Any) -> None:
    """A pre-save hook of Jupyter's contents manager; changes `model` in place. Outputs with no other face stay.

    `jupyter lab --ContentsManager.pre_save_hook=course_lib.widgets.saving.keep_static_faces`
    """
    if model.get("type") != "notebook" or not model.get("content"):
        return
    for cell in model["content"].get("cells", []):
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if _VIEW in data and "text/html" in data:
                del data[_VIEW]
