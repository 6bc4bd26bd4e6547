"""Planning a run on paper: formulas, and later plans, risks and published runs. No torch in this room."""
