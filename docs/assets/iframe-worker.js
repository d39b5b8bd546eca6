// Search runs in a worker, which browsers refuse to pages that were opened from the disk. There, and
// only there, a hidden frame takes its place: it has the same `postMessage` and `importScripts`.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== inside) return;
        const copy = new MessageEvent("message", { data: event.data });
        this.dispatchEvent(copy);
        if (this.onmessage) this.onmessage(copy);
      });
      inside.document.open();
      inside.document.write(
        "<html><body><script>" +
          "postMessage = (data) => parent.dispatchEvent(new MessageEvent('message', { data, source: window }));" +
          "importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {" +
          "  const script = document.createElement('script');" +
          "  script.src = url; script.onload = done; document.body.appendChild(script);" +
          "})), Promise.resolve());" +
          "</script><script src='" + url + "'></script></body></html>",
      );
      inside.document.close();
      this.ready = new Promise((done) => (this.frame.onload = done));
    }
    postMessage(data) {
      this.ready.then(() => {
        const inside = this.frame.contentWindow;
        inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      });
    }
    terminate() {
      this.frame.remove();
    }
  };
}
