from pages import start


def test_the_first_page_starts_at_the_first_row():
    assert start(1, 10) == 0
