from gspo.backends.vllm.errors import EngineError, blamed


def test_an_error_of_an_engine_stays_itself_and_another_is_kept_as_its_cause():
    own, other = EngineError("it died"), KeyError("results")
    assert blamed(own) is own
    assert str(blamed(other)) == "KeyError: 'results'" and blamed(other).__cause__ is other
