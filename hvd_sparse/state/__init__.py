"""State: what outlives an exchange, in files or in the hands of the next one.

Begin with renewal.py, from one world of ranks to the next, or with checkpoint.py, from one job to
the next. inheritance.py and spreading.py say who takes over which residual.
"""
