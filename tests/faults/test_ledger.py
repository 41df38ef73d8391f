"""What a campaign keeps of its trials."""

from tools.faults.ledger import Ledger, Timing, Trial


def test_a_ledger_goes_on_after_a_kill_in_mid_line(tmp_path):
    path = tmp_path / "faults.jsonl"
    ledger = Ledger(path)
    ledger.add(Trial("train: kill -9", 3, None, 0, 7))
    ledger.add(Trial("train: kill -9", 1, "other numbers", 1, 7))
    ledger.add(Timing("opening", 0.5, "10 MB"))
    path.write_bytes(path.read_bytes() + b'{"row": "train: ki')
    again = Ledger(path)
    assert again.trials == ledger.trials
    assert again.timings == ledger.timings
    assert path.read_bytes().endswith(b"}\n")
    assert again.next_number("train: kill -9", 7) == 2
    assert again.next_number("train: kill -9", 8) == 0
    tally = again.tally("train: kill -9")
    assert (tally.tried, tally.survived, tally.lost) == (4, 3, ["other numbers"])


def test_the_table_adds_kills_other_blows_and_fuzzed_input(tmp_path):
    ledger = Ledger(tmp_path / "faults.jsonl")
    for row, tried in (
        ("train: kill -9", 1200),
        ("torchrun: a rank is killed", 5),
        ("train: full disk", 4),
        ("fuzzed YAML", 90),
    ):
        ledger.add(Trial(row, tried))
    ledger.add(Trial("train: full disk", 2, "a traceback"))
    rows = {line.split("|")[1].strip(): line for line in ledger.table().splitlines()[2:]}
    assert rows["all kills"] == "| all kills | 1,205 | 1,205 | 0 |"
    assert rows["all other blows"] == "| all other blows | 6 | 4 | 2 |"
    assert rows["all fuzzed input"] == "| all fuzzed input | 90 | 90 | 0 |"
    ledger.add(Timing("opening", 0.5, "10 MB"))
    ledger.add(Timing("opening", 0.7, "10 MB"))
    assert ledger.measured() == "- opening: 0.50 s of processor time (10 MB)"
