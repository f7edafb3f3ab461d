"""The bookkeeping assistant that ships with the service: a scripted model and its tools, on real rows.

It shows every kind of event without a key and without a network, and takes the same way as any other model: `model.py`
stands behind the provider port, `ledger.py` holds plain tools. The model reads (`situation`, `words`), decides
(`special`, `wants`, `intents`), and writes (`script`, `answers`, `sayings`); nothing but `model.py` waits or counts.
The tools keep their rows in `books.py`; `months`, `money`, `terms` and `chart` are what both sides share.
"""
