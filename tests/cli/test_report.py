"""gspo report."""


def test_report_and_comparison(place):
    for page in ("run/report.html", "cold/report.html", "run/comparison.html"):
        assert "<html" in (place / page).read_text()
    assert list((place / "run" / "figures").glob("*.svg"))
