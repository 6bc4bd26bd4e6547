"""Where learner code runs: which walls this machine offers, and a warm process that forks one kernel a hand-in."""
