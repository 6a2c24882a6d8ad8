"""Tests that have parts: a part that fails fails its test."""

from __future__ import annotations

import unittest


class TestParts(unittest.TestCase):
    def test_parts(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertEqual(i, 0)


def test_right(subtests):
    with subtests.test("right"):
        assert True


def test_fixture(subtests):
    with subtests.test("wrong"):
        raise AssertionError
