"""What a rank says it does reads as a sentence, and comes back from the board as it was."""

from __future__ import annotations

import pytest

from refsim.runtime.watch.activity import Activity, Kind

SENTENCES = {
    "being forked": Activity(Kind.FORKED),
    "idle": Activity(Kind.IDLE),
    "taking the job": Activity(Kind.TAKING, "the job"),
    "loading the text encoder": Activity(Kind.LOADING, "the text encoder"),
    "running block 3": Activity(Kind.RUNNING, block=3),
    "running step 0 with transformer_2": Activity(Kind.RUNNING, "transformer_2", step=0),
    "running the transformer": Activity(Kind.RUNNING, "the transformer"),
    "encoding the prompt, block 3": Activity(Kind.ENCODING, "the prompt", block=3),
    "scheduling step 2": Activity(Kind.SCHEDULING, step=2),
    "computing linear": Activity(Kind.COMPUTING, "linear"),
    "computing sdpa of step 2 of usp/ring_attention": Activity(Kind.COMPUTING, "sdpa", "usp/ring_attention", 2),
    "all_gather over tp (axis 1)": Activity(Kind.COLLECTIVE, "tp (axis 1)", "all_gather"),
    "continuing after all_gather over tp (axis 1)": Activity(Kind.CONTINUING, "tp (axis 1)", "all_gather"),
    "posting send of step 0 of shift (to rank 5)": Activity(Kind.POSTING, "send", "shift", 0, 5),
    "waiting for recv of step 3 of all_gather (from rank 0)": Activity(Kind.WAITING, "recv", "all_gather", 3, 0),
    "handing in its trace": Activity(Kind.HANDING_IN, "its trace"),
}


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_for_people_and_the_same_activity_for_the_launcher(sentence):
    activity = SENTENCES[sentence]
    assert str(activity) == sentence
    assert Activity.decode(activity.encode(248).ljust(248, b"\0")) == activity


def test_every_kind_reads_as_a_doing_or_as_a_place():
    for kind in Kind:
        clause = Activity(kind, "send", "shift", 1, 2).clause
        assert clause.startswith("at '") or clause.split(" ")[0].endswith("ing"), clause


@pytest.mark.parametrize("name", ["x" * 1000, "é" * 500], ids=["ascii", "bytes_of_a_letter"])
def test_names_that_do_not_fit_are_cut_and_the_numbers_stay(name):
    long = Activity(Kind.WAITING, name, name, 3, 7, 9)
    data = long.encode(248)
    cut = Activity.decode(data)
    assert len(data) <= 248
    assert (cut.kind, cut.step, cut.peer, cut.block) == (Kind.WAITING, 3, 7, 9)
    assert name.startswith(cut.what) and name.startswith(cut.collective) and cut.what and cut.collective
