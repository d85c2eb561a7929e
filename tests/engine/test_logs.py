from modelfactory.engine.logs import tail


def test_the_tail_of_a_long_log(tmp_path):
    log = tmp_path / "log"
    log.write_text("\n".join(str(n) for n in range(100_000)))
    assert tail(log, 3) == "99997\n99998\n99999"


def test_bytes_that_are_no_text_are_shown_somehow(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\n")
    assert tail(log) == "\N{REPLACEMENT CHARACTER}" * 2


def test_no_log_is_an_empty_tail(tmp_path):
    assert tail(tmp_path / "none") == ""
