"""Exercises out, hand-ins in: release, execute and grade notebooks. Learner code never runs in these processes."""
