import pytest


@pytest.fixture
def refuses(subtests):
    """`refuses(call, table)`: call(argument) raises a ValueError with the message, for each pair of the table."""

    def check(call, table):
        for message, argument in table:
            with subtests.test(message=message), pytest.raises(ValueError, match=message):
                call(argument)

    return check
