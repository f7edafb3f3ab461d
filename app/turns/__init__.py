"""One turn, from accepted to settled. `runner.py` is the table of contents.

Three promises live here: order (`recorder`), one ending (`state` and `outcome`), and going forward after a crash
(`recovery`).
"""
