"""State that outlives an exchange, in files or in the next exchange.

Begin with renewal.py, from one world of ranks to the next, or with checkpoint.py, from one job to
the next. inheritance.py and spreading.py decide which rank takes over which residual.
"""
