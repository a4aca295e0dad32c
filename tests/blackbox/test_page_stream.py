"""What the raw streams and pages show of a race: P25-P27, P34-P36. The browser's part is in tests/e2e."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from html.parser import HTMLParser

import anyio
import httpx2 as httpx
import pytest

from tests.blackbox.app import LANES, Message, Run, messages_of
from tests.blackbox.batch import OTHER, Batch, Case, batch
from tests.fakes.vllm import CLOSE, DONE, ERR, FIN, HANG, ROLE, SLEEP, TOK, USE

ATTACKS = {
    "p34-split": ["<im", "g src=x onerror=window.pwned=1>"],
    "p34-script": ["<script>", "window.pwned=1", "</scr", "ipt>"],
    "p34-partial": ['<hx-partial hx-target="body">', "<h1>pwned</h1>", "</hx-partial>"],
    "p34-close-the-pane": ["</pre></div></template>", "<iframe srcdoc='<b>pwned'>"],
    "p34-attributes": ['" onmouseover="window.pwned=1" x=\'', "javascript:window.pwned=1"],
    "p34-svg": ["<svg/onload=", "window.pwned=1>"],
    "p34-template": ["{{ 7*7 }}", "${7*7}", "<%= 7*7 %>"],
    "p34-sse": ["\n\nevent: done\ndata: x\n\n", "data: pwned\n\n"],
}
CASES: dict[str, Case] = {
    "plain": Case(
        [ROLE, *[step for word in ("a ", "b ", "c ") for step in (TOK(word), SLEEP(0.03))], FIN(), USE(), DONE]
    ),
    "failing": Case([ROLE, TOK("a "), ERR(), DONE]),
    "both-failing": Case([DONE], [ROLE, TOK("x"), CLOSE]),
    **{name: Case([ROLE, *map(TOK, parts), FIN(), USE(), DONE]) for name, parts in ATTACKS.items()},
    "p35": Case([ROLE, TOK("List<Str"), TOK("ing> & "), TOK("&l"), TOK("t; <think>"), FIN(), USE(), DONE]),
    "p36": Case(
        [
            ROLE,
            *map(TOK, ["{", "\n", "  ", '"a": 1', "\r", "\n", "}", " x\u2028y\u0085z", "\ttab", "  two  spaces "]),
            FIN(),
            USE(),
            DONE,
        ]
    ),
    "p36-leading": Case([ROLE, TOK("\n"), TOK("\n    indented"), TOK("\n"), TOK("\n"), FIN(), USE(), DONE]),
    "p36-separators": Case([ROLE, TOK("a\u2029b\x0bc\x0cd\x1ce\x1df"), TOK("\r\rg"), FIN(), USE(), DONE]),
}
TEXTS = {
    "p35": "List<String> & &lt; <think>",
    "p36": '{\n  "a": 1\r\n} x\u2028y\u0085z\ttab  two  spaces ',
    "p36-leading": "\n\n    indented\n\n",
    "p36-separators": "a\u2029b\x0bc\x0cd\x1ce\x1df\r\rg",
} | {name: "".join(parts) for name, parts in ATTACKS.items()}


@pytest.fixture(scope="module")
def runs() -> Iterator[Batch]:
    with batch(CASES, at_once=6) as result:
        yield result


class Page(HTMLParser):
    """The text and the tags of some HTML, as a browser would have them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._skip = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._skip += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skip -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._skip:
            self.text += data


def frames(raw: str) -> list[Message]:
    return [m for m in messages_of(raw) if m.event is None]


def shown(text: str) -> str:
    """Text as HTML carries it: a browser makes one line break of CR and of CRLF."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


# ------------------------------------------------------------------------------------------------ P25
@pytest.mark.parametrize("name", ["plain", "failing", "both-failing"])
def test_p25_opening_the_streams_again_generates_nothing(runs: Batch, name: str) -> None:
    run = runs[name]
    for _ in range(3):
        runs.app.stream(run)
        runs.app.page(run)
        runs.app.get(f"/api/races/{run.id}/events")
    time.sleep(0.3)
    for lane in LANES:
        assert len(runs.posts(name, lane)) == 1
    assert runs.app.get(f"/api/races/{run.id}").json()["lanes"]["speculative"]["text"] == run.speculative["text"]


def test_p25_a_client_that_reconnects_mid_run_causes_no_second_run(runs: Batch) -> None:
    slow = [ROLE, *[step for _ in range(20) for step in (TOK("xy"), SLEEP(0.05))], FIN(), USE(), DONE]
    for fake in runs.fakes.values():
        fake.on("[reconnect]", slow)

    async def follow() -> tuple[list[Message], str]:
        seen: list[Message] = []
        async with httpx.AsyncClient(base_url=runs.app.root, timeout=20) as client:
            created = (await client.post("/api/races", json={"prompt": "[reconnect]"})).json()
            for _ in range(20):
                last = {"Last-Event-ID": str(seen[-1].id)} if seen else {}
                rest = ""
                with anyio.move_on_after(0.2):
                    async with client.stream("GET", created["events_url"], headers=last) as answer:
                        async for piece in answer.aiter_text():
                            rest += piece
                seen += messages_of(rest[: rest.rfind("\n\n") + 2] if "\n\n" in rest else "")
                if seen and seen[-1].event == "done":
                    return seen, created["id"]
        raise AssertionError("no end")

    seen, race = anyio.run(follow)
    ids = [int(m.id) for m in seen if m.id is not None and m.event != "done"]
    assert ids == list(range(ids[0], ids[0] + len(ids))), "a reconnect lost or repeated events"
    text = "".join(
        m.json["text"] for m in seen if m.event != "done" and m.json.get("lane") == "speculative" and "text" in m.json
    )
    assert text == "xy" * 20
    for lane in LANES:
        assert len(runs.posts("reconnect", lane)) == 1
    assert runs.app.get(f"/api/races/{race}").json()["status"] == "finished"


# ------------------------------------------------------------------------------------------------ P26
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("path", ["stream", "events"])
def test_p26_every_message_has_a_data_line_the_last_one_too(runs: Batch, name: str, path: str) -> None:
    prefix = "/races/" if path == "stream" else "/api/races/"
    answer = runs.app.get(f"{prefix}{runs[name].id}/{path}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = messages_of(answer.text)
    for message in found:
        assert message.data, f"browsers ignore a message without data: {message.lines}"
    assert found[-1].event == "done"
    assert [m.event for m in found].count("done") == 1


@pytest.mark.parametrize("path", ["/races/nosuchrace/stream", "/races/%00/stream", "/races/../stream"])
def test_p26_an_unknown_race_ends_with_done_and_data(runs: Batch, path: str) -> None:
    answer = runs.app.get(path)
    if answer.status_code == 404 and ".." in path:
        return
    assert answer.status_code == 200, "anything else makes htmx ask again for ever"
    found = messages_of(answer.text)
    assert found[-1].event == "done"
    assert found[-1].data
    assert frames(answer.text), "the page gets a frame that says so"


def test_p26_the_last_frame_is_before_done_and_has_the_result(runs: Batch) -> None:
    run = runs["plain"]
    found = messages_of(runs.app.stream(run))
    assert found[-2].event is None
    everything = "".join(m.data or "" for m in found)
    assert "a b c" in Page(everything).text


def test_p26_streams_are_not_buffered_or_cached(runs: Batch) -> None:
    run = runs["plain"]
    for path in (f"/races/{run.id}/stream", f"/api/races/{run.id}/events"):
        headers = runs.app.get(path).headers
        assert headers.get("x-accel-buffering") == "no"
        assert "no-" in headers.get("cache-control", "")


# ------------------------------------------------------------------------------------------------ P27
@pytest.mark.parametrize("headers", [{}, {"Last-Event-ID": "2"}, {"Last-Event-ID": "999999"}, {"Last-Event-ID": "x"}])
def test_p27_a_finished_races_stream_is_the_stored_result(runs: Batch, headers: dict[str, str]) -> None:
    run = runs["plain"]
    began = time.perf_counter()
    answer = runs.app.get(f"/races/{run.id}/stream", headers=headers)
    assert answer.status_code == 200, "204 makes htmx ask again for ever"
    assert messages_of(answer.text)[-1].event == "done"
    assert time.perf_counter() - began < 2, "the end comes at once"
    assert len(runs.posts("plain", "speculative")) == 1


def test_p27_a_finished_races_stream_gives_no_reason_to_retry(runs: Batch) -> None:
    raw = runs.app.stream(runs["plain"])
    assert "retry:" not in raw or int(raw.split("retry:")[1].split("\n")[0]) >= 20_000


def test_p27_after_a_given_id_only_the_rest_comes(runs: Batch) -> None:
    run = runs["plain"]
    ids = [m.id for m in run.messages if m.id and m.event != "done"]
    middle = ids[len(ids) // 2]
    for answer in (
        runs.app.get(f"/api/races/{run.id}/events?after={middle}"),
        runs.app.get(f"/api/races/{run.id}/events", headers={"Last-Event-ID": str(middle)}),
    ):
        got = messages_of(answer.text)
        assert [m.id for m in got if m.event != "done"] == ids[ids.index(middle) + 1 :]
        assert [m.data for m in got if m.event != "done"] == [
            m.data for m in run.messages if m.id and m.event != "done" and int(m.id) > int(middle or 0)
        ]
        assert got[-1].event == "done"


def test_p27_the_page_of_a_finished_race_is_whole_without_any_stream(runs: Batch) -> None:
    html = runs.app.page(runs["plain"])
    assert "a b c" in Page(html).text


def test_p27_the_page_of_an_unknown_race_is_a_404_for_people(runs: Batch) -> None:
    answer = runs.app.get("/races/nosuchrace")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    answer = runs.app.get("/api/races/nosuchrace")
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("application/problem+json")
    assert {"field", "reason", "remedy"} <= answer.json().keys()


# ------------------------------------------------------------------------------------------------ P34
def tame(html: str, innocent: str | None) -> None:
    """``html`` has only tags that ``innocent`` has too, and nothing in it runs what a model or visitor wrote."""
    allowed = None if innocent is None else {tag for tag, _ in Page(innocent).tags}
    for tag, attributes in Page(html).tags:
        assert tag not in ("img", "iframe", "object", "embed", "base", "form" if innocent is None else ""), tag
        assert allowed is None or tag in allowed, f"<{tag}> came out of somebody's mouth"
        for key, value in attributes.items():
            if key.startswith("on") or key in ("src", "href", "srcdoc", "action", "hx-get", "hx-on", "style"):
                assert "pwned" not in str(value), f"{key}={value}"
        assert attributes.get("hx-target") != "body"
    assert "<script>window.pwned" not in html


def all_frames(runs: Batch, run: Run) -> str:
    return "".join(m.data or "" for m in frames(runs.app.stream(run)))


@pytest.mark.parametrize("name", list(ATTACKS))
def test_p34_model_text_is_shown_and_never_run(runs: Batch, name: str) -> None:
    run = runs[name]
    assert run.speculative["text"] == TEXTS[name]
    page, cut = runs.app.page(run), all_frames(runs, run)
    tame(page, runs.app.page(runs["plain"]))
    tame(cut, all_frames(runs, runs["plain"]))
    tame(runs.app.get("/races").text, None)
    for html in (page, cut):
        assert shown(TEXTS[name]) in Page(html).text, "the text is shown literally"


@pytest.mark.parametrize("name", list(ATTACKS))
def test_p34_the_prompt_is_no_html_either(runs: Batch, name: str) -> None:
    prompt = TEXTS[name]
    for fake in runs.fakes.values():
        fake.then(OTHER)
    run = runs.app.race(prompt, system="<b>" + prompt)
    assert run.race["prompt"] == prompt
    page = runs.app.page(run)
    tame(page, runs.app.page(runs["plain"]))
    tame(all_frames(runs, run), all_frames(runs, runs["plain"]))
    tame(runs.app.get("/races").text, None)
    assert prompt.strip() in Page(page).text
    for fake in runs.fakes.values():
        assert fake.posts[-1].prompt == prompt


@pytest.mark.parametrize("path", ["/", "/races", "race"])
def test_p34_a_content_security_policy_stands_behind_it(runs: Batch, path: str) -> None:
    answer = runs.app.get(f"/races/{runs['plain'].id}" if path == "race" else path)
    policy = answer.headers.get("content-security-policy", "")
    assert "default-src 'self'" in policy or "default-src 'none'" in policy
    assert "script-src" in policy
    scripts = policy.split("script-src")[1].split(";")[0]
    assert "unsafe-inline" not in scripts
    assert "unsafe-eval" not in scripts
    assert answer.headers.get("x-content-type-options") == "nosniff"


# ------------------------------------------------------------------------------------------------ P35, P36
@pytest.mark.parametrize("name", ["p35", "p36", "p36-leading", "p36-separators"])
def test_p35_p36_the_json_has_the_deltas_exactly(runs: Batch, name: str) -> None:
    run = runs[name]
    assert run.speculative["text"] == TEXTS[name]
    assert run.streamed("speculative") == TEXTS[name]


@pytest.mark.parametrize("name", ["p35", "p36", "p36-leading", "p36-separators"])
def test_p35_p36_the_html_has_the_text_exactly(runs: Batch, name: str) -> None:
    run = runs[name]
    expected = shown(TEXTS[name])
    assert expected in Page(runs.app.page(run)).text, "the stored page"
    assert expected in Page("".join(m.data or "" for m in frames(runs.app.stream(run)))).text, "the stream"


def test_p36_a_leading_line_break_survives_the_pre_element(runs: Batch) -> None:
    """Browsers drop a line break right after <pre>: the template has to bring another, or no <pre>."""
    html = runs.app.page(runs["p36-leading"])
    at = html.index("\n\n    indented")
    assert html[:at].endswith("\n") or not html[:at].rstrip().endswith("<pre>")


def test_p36_a_message_of_the_stream_is_one_line_of_data_or_many(runs: Batch) -> None:
    """U+2028, U+0085 and the like are no line ends in an event stream; CR would be one (messages_of refuses it)."""
    for name in ("p36", "p36-separators"):
        for raw in (runs.app.stream(runs[name]), runs.app.get(f"/api/races/{runs[name].id}/events").text):
            for message in messages_of(raw):
                assert all(line.split(":")[0] in ("id", "event", "data", "retry") for line in message.lines)
        for message in messages_of(runs.app.get(f"/api/races/{runs[name].id}/events").text):
            if message.event != "done":
                json.loads(message.data or "")


# ------------------------------------------------------------------------------------------------ while it runs
def test_p34_p36_the_live_frames_say_the_same_as_the_stored_ones(runs: Batch) -> None:
    slow = [
        ROLE,
        *[s for part in ["<im", "g>\n", "  &l", "t;\r", "\n}"] for s in (TOK(part), SLEEP(0.15))],
        FIN(),
        USE(),
        DONE,
    ]
    runs.fakes["speculative"].on("[live]", slow)
    runs.fakes["baseline"].on("[live]", [ROLE, TOK("x"), SLEEP(2), HANG])

    async def watch() -> tuple[str, str]:
        raw = ""
        async with httpx.AsyncClient(base_url=runs.app.root, timeout=20) as client:
            race = (await client.post("/api/races", json={"prompt": "[live]"})).json()["id"]
            with anyio.move_on_after(1.5):
                async with client.stream("GET", f"/races/{race}/stream") as answer:
                    async for piece in answer.aiter_text():
                        raw += piece
            await client.post(f"/api/races/{race}/stop")
        return race, raw

    _, raw = anyio.run(watch)
    found = frames(raw[: raw.rfind("\n\n") + 2])
    assert len(found) >= 4, "frames come while the race runs"
    ids = [int(m.id) for m in found if m.id is not None]
    assert ids == sorted(set(ids))
    everything = Page("".join(m.data or "" for m in found))
    assert not [tag for tag, _ in everything.tags if tag == "img"]
    for message in found:
        opened, closed = (message.data or "").count("<hx-partial"), (message.data or "").count("</hx-partial>")
        assert opened == closed, "a frame is whole"
        assert opened > 0, "a message without a frame: browsers ignore empty data, and it costs as much as a full one"
