"""Why big runs fail: broken causality, bias that accumulates, and how to find out which fault it is."""
