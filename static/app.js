// Everything the page does by itself: follow the text, tick clocks, keys, theme, one click one race.
// The page shows stored results without it.

const $ = (selector) => document.querySelector(selector);
const root = document.documentElement;

// --- one click, one race ---------------------------------------------------------------------------

// A recording or a replay (they wear a band) never keeps anybody from racing.
const live = () => Boolean($("#stop:not(:disabled)")) && !$("#band");

/** The start button rests while this page's race runs; the server's one-time ticket is what really counts. */
function settle(busy = false) {
  const run = $("#run");
  if (!run) return;
  if (busy || live() || "blocked" in run.dataset) run.setAttribute("aria-disabled", "true");
  else run.removeAttribute("aria-disabled");
}

addEventListener("click", (event) => {
  if (!event.target.closest?.("[aria-disabled=true]")) return;
  event.preventDefault();
  event.stopImmediatePropagation();
}, true);

addEventListener("htmx:before:request", ({ detail }) => {
  if (detail.ctx.sourceElement.id !== "run") return;
  $("#notice").replaceChildren();
  settle(true);
});

// Whoever goes by keyboard stays where they were, though what they pressed is replaced.
const LINKS = ".tabs a, .picks a";
let pressed;
addEventListener("htmx:before:swap", () => {
  const { activeElement: on } = document;
  pressed = on?.id === "stop" ? "stop" : on?.matches(LINKS) ? on.getAttribute("href") : undefined;
});
function refocus() {
  if (!pressed || document.activeElement !== document.body) return;
  const to = pressed === "stop" ? $("#stop:not(:disabled)") ?? $("#run") : [...document.querySelectorAll(LINKS)].find((a) => a.getAttribute("href") === pressed);
  to?.focus({ preventScroll: true });
}

addEventListener("htmx:after:swap", ({ detail }) => {
  settle();
  follow();
  refocus();
  // On a phone the race begins below the fold: bring it up for whoever started it, not for a recording that plays itself.
  const { target, sourceElement } = detail.ctx ?? {};
  const asked = sourceElement?.matches?.("#start, #start *, .after, .after *");
  if (target?.id === "arena" && asked && (innerWidth <= 768 || innerHeight < 480)) $("#arena").scrollIntoView({ block: "start" });
});
addEventListener("htmx:finally:request", () => settle());

/** A click must never do nothing: say so when no answer of ours came back. */
function failed({ detail }) {
  const source = detail.ctx?.sourceElement;
  if (!source?.closest?.("#start, .after")) return;
  setTimeout(() => {
    if ($("#notice").childElementCount) return;
    const note = document.createElement("p");
    note.className = "trouble bad";
    note.setAttribute("role", "alert");
    const status = detail.ctx.response?.status;
    note.textContent = `Specrace did not take that (${status ? `HTTP ${status}` : "no connection"}). Try again.`;
    $("#notice").replaceChildren(note);
  }, 50);
}
addEventListener("htmx:response:error", failed);
addEventListener("htmx:error", failed);

// --- connection -------------------------------------------------------------------------------------

const offline = (is) => { const band = $("#offline"); if (band && band.hidden === is) band.hidden = !is; };
const lost = ({ detail }) => { if (!detail.ctx?.response) offline(true); };
addEventListener("htmx:error", lost);
addEventListener("htmx:sse:error", ({ detail }) => { if (detail.error?.name !== "AbortError") offline(true); });
addEventListener("htmx:sse:after:connection", () => offline(false));
addEventListener("htmx:after:request", () => offline(false));

// A healthy stream speaks at once. One that stays silent is held back by a proxy; say so rather than look frozen.
const SILENT_MS = 4000;
const heard = new WeakSet();
const wired = new WeakMap();
addEventListener("htmx:sse:before:message", ({ target }) => heard.add(target));

function listen(now) {
  const wire = $("#wire");
  const band = $("#buffered");
  if (!band) return;
  if (wire && !wired.has(wire)) { wired.set(wire, now); band.hidden = true; }
  if (wire && !heard.has(wire) && now - wired.get(wire) > SILENT_MS && $("#offline").hidden) band.hidden = false;
}

// --- follow the text, unless the reader scrolled up -------------------------------------------------

const NEAR = 32;
const reading = new WeakSet();
const put = new WeakMap();

function toEnd(box) {
  box.scrollTop = box.scrollHeight;
  put.set(box, box.scrollTop);
}

// More text may have come between our own scrolling and its event: only a step back is the reader's.
addEventListener("scroll", ({ target }) => {
  if (!target.classList?.contains("scroll")) return;
  const away = target.scrollHeight - target.scrollTop - target.clientHeight > NEAR;
  if (!away) reading.delete(target);
  else if (target.scrollTop < (put.get(target) ?? 0) - 1) reading.add(target);
  target.parentElement.toggleAttribute("data-away", reading.has(target));
}, { capture: true, passive: true });

let due = false;
function follow() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    const running = Boolean($("#wire"));
    for (const box of document.querySelectorAll(".scroll")) {
      // A race that is over opens at its first line, unless there is trouble to be read at the end.
      if (!reading.has(box) && (running || box.querySelector(".trouble"))) toEnd(box);
    }
  });
}
addEventListener("resize", follow);

addEventListener("click", ({ target }) => {
  const box = document.getElementById(target.closest?.("[data-follow]")?.dataset.follow);
  if (!box) return;
  reading.delete(box);
  toEnd(box);
});

// --- clocks -----------------------------------------------------------------------------------------
// data-since holds the milliseconds that had passed when the server rendered the clock.

const begun = new WeakMap();

function tick() {
  const now = performance.now();
  for (const clock of document.querySelectorAll("[data-since]")) {
    const { since } = clock.dataset;
    if (begun.get(clock)?.since !== since) begun.set(clock, { since, zero: now - Number(since) });
    const ms = now - begun.get(clock).zero;
    const text = "whole" in clock.dataset ? whole(ms / 1000) : `${(ms / 1000).toFixed(1)} s`;
    if (clock.textContent !== text) clock.textContent = text;
  }
}

function whole(seconds) {
  const minutes = Math.floor(seconds / 60);
  const rest = Math.floor(seconds % 60);
  return minutes ? `${minutes} min ${String(rest).padStart(2, "0")} s` : `${rest} s`;
}
setInterval(() => {
  if (document.hidden) return;
  if ($("#offline")?.hidden !== false) tick();
  listen(performance.now());
}, 100);

// --- what a number means: tap and keys are native, hover comes from here ----------------------------

let opening;
if (matchMedia("(hover: hover)").matches) {
  addEventListener("pointerover", ({ target }) => {
    const term = target.closest?.("button.term[popovertarget]");
    const tip = document.getElementById(term?.getAttribute("popovertarget"));
    if (!tip?.showPopover || tip.matches(":popover-open")) return;
    clearTimeout(opening);
    opening = setTimeout(() => { if (term.isConnected) { tip.showPopover({ source: term }); tip.dataset.hover = ""; } }, 350);
  });
  addEventListener("pointerout", ({ target, relatedTarget }) => {
    const term = target.closest?.("button.term[popovertarget]");
    if (!term || term.contains(relatedTarget)) return;
    clearTimeout(opening);
    const tip = document.getElementById(term.getAttribute("popovertarget"));
    if (tip && "hover" in tip.dataset) { delete tip.dataset.hover; tip.hidePopover?.(); }
  });
  // A click on a word whose explanation the pointer opened keeps it open; the next one closes it.
  addEventListener("click", (event) => {
    const term = event.target.closest?.("button.term[popovertarget]");
    if (!term) return;
    clearTimeout(opening);
    const tip = document.getElementById(term.getAttribute("popovertarget"));
    if (!tip || !("hover" in tip.dataset)) return;
    delete tip.dataset.hover;
    if (tip.matches(":popover-open")) event.preventDefault();
  }, true);
}

// --- copy a table to paste it elsewhere --------------------------------------------------------------

function offerCopies() {
  for (const button of document.querySelectorAll("[data-copy]")) button.hidden = !navigator.clipboard;
}
addEventListener("htmx:after:swap", offerCopies);
offerCopies();

addEventListener("click", async ({ target }) => {
  const button = target.closest?.("[data-copy]");
  if (!button) return;
  const words = button.textContent;
  try {
    const answer = await fetch(button.dataset.copy);
    if (!answer.ok) throw new Error(answer.status);
    await navigator.clipboard.writeText(await answer.text());
    button.textContent = "Copied";
  } catch { button.textContent = "Could not copy: use the link"; }
  setTimeout(() => { button.textContent = words; }, 2000);
});

// --- which tokens were drafted ----------------------------------------------------------------------
// A span tells its tokens in data-ink, one word a step (app/web/ink.py has the grammar); the words are made here.

const unmarked = () => root.dataset.ink === "off";
const mark = () => $("#ink")?.setAttribute("aria-pressed", String(!unmarked()));
addEventListener("htmx:after:swap", mark);

addEventListener("click", ({ target }) => {
  if (!target.closest?.("#ink")) return;
  root.dataset.ink = unmarked() ? "on" : "off";
  try { localStorage.setItem("ink", root.dataset.ink); } catch { /* not kept, then */ }
  mark();
});

/** Characters of ``box`` before a place in it. */
function before(box, node, offset) {
  const range = new Range();
  range.setStart(box, 0);
  range.setEnd(node, offset);
  return range.toString().length;
}

/** The character of ``span`` under a point; a caret stands between two. */
function under(span, x, y) {
  const caret = document.caretPositionFromPoint?.(x, y);
  const range = caret ? undefined : document.caretRangeFromPoint?.(x, y);
  const node = caret?.offsetNode ?? range?.startContainer;
  const offset = caret?.offset ?? range?.startOffset;
  if (node?.nodeType !== Node.TEXT_NODE || !span.contains(node)) return undefined;
  const index = before(span, node, offset);
  if (!offset) return index;
  const previous = new Range();
  previous.setStart(node, offset - 1);
  previous.setEnd(node, offset);
  const inside = [...previous.getClientRects()].some((box) => box.left <= x && x < box.right && box.top <= y && y < box.bottom);
  return inside ? index - 1 : index;
}

/** What is known of the token at a character of ``span``. */
function token(span, index) {
  let step = Number(span.dataset.step);
  let end = 0;
  for (const word of span.dataset.ink.split(" ")) {
    const [head, lengths] = word.split(":");
    let place = 0;
    for (const entry of lengths.split(",")) {
      const [length, tokens = 1] = entry.split("*").map(Number);
      end += length;
      if (index < end) return say(head, place, tokens, step, span.classList.contains("hint"));
      place += tokens;
    }
    if (head.startsWith("~")) step += Number(head.slice(1).split(".")[0]);
    else if (head !== "p" && head !== "?") step += 1;
  }
  return undefined;
}

function say(head, place, tokens, step, hint) {
  if (head === "p") return "first token · from the prefill, before any draft";
  if (head === "?") return "the server did not count these tokens";
  const where = step ? `step ${step} · ` : "";
  const doubt = hint ? ` · ${step ? "approximate" : "estimate"}` : "";
  return where + origin(head, place, tokens) + doubt;
}

function origin(head, place, tokens) {
  if (head.startsWith("~")) {
    const [, drafts, total] = head.slice(1).split(".").map(Number);
    return drafts ? `${drafts} of these ${total} tokens drafted, where is not known` : "target's own tokens";
  }
  const [accepted, drafted] = head.split("/");
  const of = drafted ? ` of ${drafted}` : "";
  if (place >= Number(accepted)) {
    return accepted ? `target's own token, after ${accepted} accepted${of}` : "target's own token, no accepted draft before it";
  }
  if (place + tokens > Number(accepted)) {
    const drafts = Number(accepted) - place;
    return `${drafts} draft ${drafts === 1 ? "token" : "tokens"}${of} and the target's own`;
  }
  return `draft ${tokens === 1 ? `token ${place + 1}` : `tokens ${place + 1}–${place + tokens}`}${of} · accepted`;
}

const tip = document.createElement("p");
tip.className = "inktip";
tip.id = "inktip";
tip.hidden = true;
document.body.append(tip);
const hush = () => { tip.hidden = true; };

let pointing;
function point({ target, clientX: x, clientY: y }) {
  cancelAnimationFrame(pointing);
  const span = unmarked() ? undefined : target.closest?.("span[data-ink]");
  if (!span) return hush();
  pointing = requestAnimationFrame(() => {
    const index = span.isConnected ? under(span, x, y) : undefined;
    const words = index === undefined ? undefined : token(span, index);
    if (!words) return hush();
    tip.textContent = words;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(x - 16, document.documentElement.clientWidth - box.width - 8))}px`;
    tip.style.top = `${y - box.height - 16 < 8 ? y + 24 : y - box.height - 16}px`;
  });
}
addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") point(event); }, { passive: true });
addEventListener("click", point);
addEventListener("scroll", hush, { capture: true, passive: true });
addEventListener("keydown", ({ key }) => { if (key === "Escape") hush(); });

// A text that comes whole once more keeps the reader's selection.
let held;
addEventListener("htmx:before:swap", () => {
  const chosen = getSelection();
  const box = chosen.isCollapsed ? undefined : chosen.anchorNode?.parentElement?.closest(".speculative .out, .speculative .think");
  held = box?.contains(chosen.focusNode)
    ? { id: box.id, node: chosen.anchorNode, from: before(box, chosen.anchorNode, chosen.anchorOffset), to: before(box, chosen.focusNode, chosen.focusOffset) }
    : undefined;
});

function place(box, index) {
  const texts = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  let rest = index;
  while (texts.nextNode()) {
    if (rest <= texts.currentNode.length) return [texts.currentNode, rest];
    rest -= texts.currentNode.length;
  }
  return undefined;
}

addEventListener("htmx:after:swap", () => {
  if (!held || held.node.isConnected) return;
  const box = document.getElementById(held.id);
  const [from, to] = box ? [place(box, held.from), place(box, held.to)] : [];
  held = undefined;
  if (from && to) getSelection().setBaseAndExtent(...from, ...to);
});

// --- theme ------------------------------------------------------------------------------------------

$("#theme")?.addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* not kept, then */ }
});

// --- keys -------------------------------------------------------------------------------------------

const TYPING = "input:not([type=radio]), textarea, select, [contenteditable]";
const ACTING = "a, button, summary, [role=button]";

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.altKey || event.repeat) return;
  const { key, target } = event;
  if ((event.ctrlKey || event.metaKey) && key === "Enter" && target.matches?.("#start textarea")) return press("#run", event);
  if (event.ctrlKey || event.metaKey || target.matches?.(TYPING)) return;
  if (key === "s" || key === "S") return press("#stop", event);
  if (/^[1-9]$/.test(key)) return press(`.tabs a:nth-of-type(${key})`, event);
  if ((key === "Enter" || key === " ") && !target.closest?.(ACTING)) press("#run", event);
});

function press(selector, event) {
  const element = $(selector);
  if (!element || element.disabled) return;
  event.preventDefault();
  element.click();
}

settle();
follow();
mark();
