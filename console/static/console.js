// Live figures, the live tail, and "select all". Pages work without it.
"use strict";

(function () {
  const liveSwitch = document.getElementById("live-switch");
  const live = () => document.getElementById("live");

  // Live figures: the server sends an event for each sample; htmx then loads the part of the page that shows figures.
  // A hidden tab has no stream: browsers open at most six connections to a server, and each stream keeps one.
  let isWanted = true;
  let isOffline = false;
  let isHeld = false;
  let isStale = false;
  let source = null;

  // While somebody works in that part with the keyboard, or marks text, it stays as it is.
  function isInUse(part) {
    const selection = document.getSelection();
    const focused = document.activeElement;
    return (part.contains(focused) && focused.matches(":focus-visible"))
      || (selection !== null && !selection.isCollapsed && part.contains(selection.anchorNode));
  }

  function showWord() {
    const word = !isWanted ? "Paused" : isOffline ? "Offline" : isStale ? "Not updated" : isHeld ? "Held" : "Live";
    document.getElementById("live-word").textContent = word;
    liveSwitch.setAttribute("aria-pressed", String(isWanted));
    liveSwitch.classList.toggle("offline", isWanted && (isOffline || isStale));
  }

  function refresh() {
    isHeld = isInUse(live());
    if (!isHeld) htmx.trigger(document.body, "raymq-sample");
    showWord();
  }

  function openStream() {
    source = new EventSource("/live");
    source.onopen = () => { isOffline = false; showWord(); };
    source.onerror = () => { isOffline = true; showWord(); };
    source.addEventListener("sample", refresh);
  }

  function closeStream() {
    if (source) source.close();
    source = null;
    isOffline = false;
  }

  function followVisibility() {
    if (document.hidden || !isWanted) {
      closeStream();
    } else if (!source) {
      openStream();
      refresh();
    }
    showWord();
  }

  function onLivePart(name, act) {
    document.body.addEventListener(name, (event) => {
      if (event.detail.target && event.detail.target.id === "live") act(event);
    });
  }

  if (live()) {
    liveSwitch.hidden = false;
    liveSwitch.addEventListener("click", () => { isWanted = !isWanted; followVisibility(); });
    for (const name of ["htmx:responseError", "htmx:sendError", "htmx:timeout"]) {
      onLivePart(name, () => { isStale = true; showWord(); });
    }
    onLivePart("htmx:beforeSwap", (event) => { if (event.detail.shouldSwap) { isStale = false; showWord(); } });
    // What the banner says is announced: it is replaced only by another text.
    document.body.addEventListener("htmx:oobBeforeSwap", (event) => {
      event.detail.shouldSwap = event.detail.fragment.textContent !== event.detail.target.textContent;
    });
    document.addEventListener("visibilitychange", followVisibility);
    window.addEventListener("pagehide", closeStream);
    window.addEventListener("pageshow", (event) => { if (event.persisted) followVisibility(); });
    if (!document.hidden) openStream();
    showWord();
  }

  // Live tail of a topic.
  const tailSwitch = document.getElementById("tail-switch");
  const shown = 200;
  let tail = null;
  let isTailing = false;
  let held = [];
  let left = { too_fast: 0, missing: 0, old: 0, all: 0, breaks: 0 };

  function cell(label, ...content) {
    const made = document.createElement("td");
    made.dataset.label = label;
    made.append(...content);
    return made;
  }

  function element(name, className, text) {
    const made = document.createElement(name);
    made.className = className;
    made.textContent = text;
    return made;
  }

  function tailRow(message) {
    const link = element("a", "id", message.message_id);
    link.href = "/messages/" + encodeURIComponent(message.message_id);
    const row = document.createElement("tr");
    const stored = new Date(message.store_timestamp * 1000).toISOString();
    row.append(
      cell("Message id", link),
      cell("Queue @ offset", `${message.broker}:${message.queue_id} @ ${message.offset}`),
      cell("Stored", stored.slice(0, 10) + " " + stored.slice(11, 19) + " UTC"),
      cell("Keys", ...message.keys.map((key) => element("code", "chip", key))),
      cell("Tag", message.tags || "–"),
      cell("Body", element("code", "preview", message.preview)),
    );
    return row;
  }

  const tailBox = document.getElementById("tail-box");
  const tailLine = (text) => { document.getElementById("tail-state").textContent = text; };

  function tailState(word) {
    const parts = [`${word}: ${left.all} messages came`];
    if (held.length) parts.push(`${held.length} of them are held back while the pointer is over the table`);
    if (left.too_fast) parts.push(`${left.too_fast} skipped, they came faster than this page shows them`);
    if (left.missing) parts.push(`${left.missing} missing at the brokers (expired or damaged)`);
    if (left.breaks) parts.push("those that arrived while this tab was hidden were missed");
    if (left.old) parts.push(`the last ${shown} are kept here`);
    tailLine(parts.join("; ") + ".");
  }

  // Rows that move cannot be clicked: new ones wait while the pointer is over the table.
  function showHeld() {
    const rows = document.getElementById("tail-rows");
    for (const message of held) rows.prepend(tailRow(message));
    held = [];
    while (rows.rows.length > shown) { rows.deleteRow(-1); left.old += 1; }
  }

  function openTail() {
    tail = new EventSource(tailSwitch.dataset.url);
    tail.onopen = () => tailState("Following");
    tail.onerror = () => {
      stopTail();
      tailLine(`The connection broke after ${left.all} messages; those that arrived since were missed.`);
    };
    tail.addEventListener("failed", (event) => { stopTail(); tailLine(JSON.parse(event.data).error); });
    tail.addEventListener("messages", (event) => {
      const batch = JSON.parse(event.data);
      held.push(...batch.messages);
      left.old += Math.max(0, held.length - shown);
      held = held.slice(-shown);
      left.all += batch.messages.length + batch.too_fast;
      left.too_fast += batch.too_fast;
      left.missing += batch.missing;
      if (!tailBox.matches(":hover")) showHeld();
      tailState("Following");
    });
  }

  function startTail() {
    left = { too_fast: 0, missing: 0, old: 0, all: 0, breaks: 0 };
    tailBox.hidden = false;
    tailSwitch.textContent = "Stop";
    openTail();
  }

  function closeTail() {
    if (tail) tail.close();
    tail = null;
    showHeld();
  }

  function stopTail() {
    isTailing = false;
    closeTail();
    tailSwitch.textContent = "Follow new messages";
  }

  if (tailSwitch) {
    tailSwitch.hidden = false;
    tailSwitch.addEventListener("click", () => {
      isTailing = !isTailing;
      if (isTailing) {
        startTail();
      } else {
        stopTail();
        tailState("Stopped");
      }
    });
    tailBox.addEventListener("mouseleave", () => { showHeld(); if (tail) tailState("Following"); });
    document.addEventListener("visibilitychange", () => {
      if (!isTailing) return;
      if (document.hidden && tail) {
        closeTail();
        left.breaks += 1;
      } else if (!document.hidden && !tail) {
        openTail();
      }
    });
    window.addEventListener("pagehide", () => { if (tail) { stopTail(); tailState("Stopped"); } });
  }

  // The page of a redrive asks for its state until it is done.
  if (document.getElementById("job")) {
    const isOfJob = (event) => event.detail.target && event.detail.target.id === "job";
    for (const name of ["htmx:responseError", "htmx:sendError"]) {
      document.body.addEventListener(name, (event) => {
        if (!isOfJob(event)) return;
        const isLost = name === "htmx:responseError" && event.detail.xhr.status === 404;
        document.getElementById(isLost ? "job-lost" : "job-silent").hidden = false;
        if (isLost) event.detail.target.remove();
      });
    }
    document.body.addEventListener("htmx:beforeSwap", (event) => {
      if (isOfJob(event)) document.getElementById("job-silent").hidden = true;
    });
  }

  // Select all dead letters of the list.
  const all = document.getElementById("select-all");
  if (all) {
    all.addEventListener("change", () => {
      for (const box of document.querySelectorAll('input[name="ids"]')) box.checked = all.checked;
    });
  }
})();
