"""Messages between launcher, fork server and ranks: JSON and file descriptors, or a clean end."""

import os
import socket
import subprocess
import sys
import threading

import pytest

from refsim.runtime.ranks import messages
from refsim.runtime.watch.activity import Activity, Kind
from refsim.runtime.watch.status import StatusBoard


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("size", [0, 1, 3_000_000], ids=["no_text", "a_letter", "more_than_a_socket_holds"])
def test_round_trip(pair, size):
    header = {"text": "é" * size, "list": [1, None, 2.5]}
    sender = threading.Thread(target=messages.send, args=(pair[0], header))
    sender.start()
    assert messages.receive(pair[1]) == (header, [])
    sender.join()


def test_messages_do_not_run_into_each_other(pair):
    for i in range(3):
        messages.send(pair[0], {"i": [i] * i})
    assert [messages.receive(pair[1])[0] for _ in range(3)] == [{"i": [i] * i} for i in range(3)]


def test_another_protocol_is_told_by_its_length(pair):
    pair[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(EOFError, match="another protocol"):
        messages.receive(pair[1])


def test_file_descriptors_travel_in_batches(pair, tmp_path):
    files = [(tmp_path / str(i)).open("w+") for i in range(3)]
    messages.send(pair[0], {}, fds=[f.fileno() for f in files])
    arrived = messages.receive(pair[1])[1]
    for i, fd in enumerate(arrived):
        os.write(fd, str(i).encode())
        os.close(fd)
    assert [(tmp_path / str(i)).read_text() for i in range(3)] == ["0", "1", "2"]
    for file in files:
        file.close()
    batches = messages.fd_batches(list(range(500)))
    assert [fd for batch in batches for fd in batch] == list(range(500))
    assert max(map(len, batches)) <= 253  # SCM_MAX_FD of Linux


@pytest.mark.parametrize("cut", [0, 5, 20], ids=["before", "in_the_head", "in_the_text"])
def test_a_closed_connection_is_the_end(pair, cut):
    whole, read_back = socket.socketpair()
    with whole, read_back:
        messages.send(whole, {"some": "header"})
        pair[0].sendall(read_back.recv(1000)[:cut])
    pair[0].close()
    with pytest.raises(EOFError):
        messages.receive(pair[1])


def test_status_board_is_shared_and_keeps_ranks_apart(tmp_path):
    with (tmp_path / "board").open("w+b") as file:
        file.truncate(StatusBoard.size(3))
        ours, theirs = StatusBoard(file.fileno(), 3), StatusBoard(file.fileno(), 3)
    first, last = Activity(Kind.LOADING, "first"), Activity(Kind.WAITING, "recv", "all_reduce/all_gather", 3, 7)
    theirs.set(1, first)
    before = ours.get(1)
    theirs.set(1, Activity(Kind.LOADING, "x" * 1000))
    theirs.set(2, last)
    assert before[1] == first
    assert ours.get(0) == (0.0, None)
    assert set(ours.get(1)[1].what) == {"x"}
    assert ours.get(2)[1] == last
    assert ours.get(1)[0] >= before[0] > 0


_KEEP_SAYING = """
import sys, time
from refsim.runtime.watch.activity import Activity, Kind
from refsim.runtime.watch.status import StatusBoard
with open(sys.argv[1], "r+b") as file:
    board, end = StatusBoard(file.fileno(), 1), time.process_time() + 1
while time.process_time() < end:
    board.set(0, Activity(Kind.RUNNING, "working"))
"""


def test_a_rank_that_said_something_never_looks_silent(tmp_path):
    """Whoever looks while it writes sees the old count or the new one."""
    path = tmp_path / "board"
    path.write_bytes(bytes(StatusBoard.size(1)))
    with path.open("r+b") as file:
        board = StatusBoard(file.fileno(), 1)
    board.set(0, Activity(Kind.IDLE))
    with subprocess.Popen([sys.executable, "-c", _KEEP_SAYING, path]) as writer:
        looks = [board.get(0) for _ in iter(writer.poll, 0)]
    assert any(activity.what == "working" for _, activity in looks)
    assert all(at > 0 and activity for at, activity in looks)
