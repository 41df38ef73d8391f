from normlab.experiments.claims.evidence import Evidence, curve, number
from normlab.experiments.claims.summary import summary


def test_nine_rows_and_a_number_where_there_is_evidence():
    assert len(summary({})) == 9
    assert all(row.holds is None and row.pre is None for row in summary({}))
    metric = "gradient of the last FFN by depth"
    depths = [2, 8, 32]
    falling, flat = [1.0, 0.5, 0.25], [1.0, 1.01, 1.0]
    found = Evidence(
        "mean-field",
        (curve(metric, depths, [falling], "pre_norm", axis="l"), curve(metric, depths, [flat], "post_norm", axis="l")),
        (0,),
    )
    row = next(r for r in summary({"mean-field": found}) if r.pre is not None)
    assert (row.claim, row.holds) == ("001-09", True)
    assert abs(row.pre + 0.5) < 0.01


def test_rows_that_compare_and_rows_that_fail():
    rate = "highest rate that learns"
    rates = Evidence("rates-map", (number(rate, [0.1, 0.1], "pre_norm"), number(rate, [0.2, 0.2], "post_norm")), (0, 1))
    row = next(r for r in summary({"rates-map": rates}) if r.claim == "001-12")
    assert row.holds is False
    half = Evidence("rates-map", (number(rate, [0.1, 0.1], "pre_norm"),), (0, 1))
    assert next(r for r in summary({"rates-map": half}) if r.claim == "001-12").holds is None
