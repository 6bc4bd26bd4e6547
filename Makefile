# The same names for those who have make; start.py does the work.
PYTHON ?= python3

.PHONY: lab setup test check stress
lab setup test check stress:
	@$(PYTHON) start.py $@
