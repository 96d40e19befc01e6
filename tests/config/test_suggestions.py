from gspo.config.suggestions import nearest


def test_the_nearest_word():
    assert nearest("gspoo", ["gspo", "grpo"]) == ", did you mean gspo?"
    assert nearest("zzz", ["gspo", "grpo"]) == nearest("gspo", []) == ""
