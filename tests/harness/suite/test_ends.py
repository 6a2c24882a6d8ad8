"""Tests that end their process or never end, and others around them in the same file."""

from __future__ import annotations

import ctypes
import time

import torch
import ttnn
from test_values import on

from tt_impl.mock.rules.registry import per_device
from tt_impl.trace.intercept import uncaught


@ttnn.register_python_operation(name="ttnn.suite_crash")
def crash(tensor):
    with uncaught():
        ttnn.clone(tensor)
    ctypes.string_at(0)


@per_device("suite_crash")
def rule(tensor):
    return tensor


def test_before(device):
    ttnn.add(on(device, torch.ones(32, 32)), 1.0)


def test_crash(device):
    crash(on(device, torch.ones(64, 32)))


def test_between(device):
    ttnn.add(on(device, torch.ones(32, 32)), 1.0)


def test_crash_after_an_operation(device):
    ttnn.add(on(device, torch.ones(32, 96)), 1.0)
    ctypes.string_at(0)


def test_hang(device):
    time.sleep(1000)


def test_behind(device):
    ttnn.add(on(device, torch.ones(32, 32)), 1.0)
