// What a page went through, measured inside it: read as window.watch when the test is over.
if (window === top) {
  window.watch = { origin: performance.timeOrigin, long: [], late: [], said: [], grew: { baseline: [], speculative: [] } };
  try {
    new PerformanceObserver((list) => {
      for (const entry of list.getEntries()) watch.long.push([entry.startTime, entry.duration]);
    }).observe({ type: "longtask", buffered: true });
  } catch { /* not known here */ }

  // A timer that should fire every 20 ms: when it is late, the whole browser was.
  let last = performance.now();
  setInterval(() => {
    const now = performance.now();
    if (now - last > 60) watch.late.push([last, now - last]);
    last = now;
  }, 20);

  const lane = (node) => /^out-(\w+)$/.exec((node.nodeType === 1 ? node : node.parentElement)?.closest?.("[id^=out-]")?.id ?? "")?.[1];
  new MutationObserver((changes) => {
    const now = performance.now();
    for (const change of changes) {
      const where = change.target.nodeType === 1 ? change.target : change.target.parentElement;
      if (where?.closest?.("#say")) watch.said.push(document.querySelector("#say").textContent.trim());
      else if (change.addedNodes.length || change.type === "characterData") {
        const grown = lane(change.target);
        if (grown && watch.grew[grown].at(-1) !== now) watch.grew[grown].push(now);
      }
    }
  }).observe(document, { childList: true, characterData: true, subtree: true });
}
