from unittest import TestCase

from pages import start


class TestPages(TestCase):
    def test_the_first_page_starts_at_the_first_row(self):
        assert start(1, 10) == 0
