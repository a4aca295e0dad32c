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
  const to = pressed === "stop" ? $("#run") : [...document.querySelectorAll(LINKS)].find((a) => a.getAttribute("href") === pressed);
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
