"""What a check cell calls: `core` has the parts of every check, `chNN` the exercises of one chapter."""
