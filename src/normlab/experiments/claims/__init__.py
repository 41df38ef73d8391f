"""`normlab claims`: the claims of the field, each with a criterion fixed before the run, evidence, and a computed verdict.

claim.py      what a claim is                     ledger/     the rows, one file a seed (a family of claims of one source)
evidence.py   what was measured, as a file        measured/   the functions that measure, found by themselves
criteria.py   how numbers become a finding        decide.py   how findings become verdicts (Holm over a page)
nulls.py      false alarms and power              book.py     the ledger with its verdicts: read, run, write

A new claim is one row in `ledger/`. A new measurement is one function in `measured/`.
"""
