// Search runs in a worker, which browsers refuse to pages that are opened as files. Then it runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.self = inside;
      // The script of a worker sets onmessage and calls postMessage; both belong to the frame here.
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      inside.importScripts = () => undefined;
      this.ready = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = new URL(url, location.href).href;
        script.onload = resolve;
        script.onerror = reject;
        inside.document.body.append(script);
      });
      this.ready.catch(() => this.onerror?.(new Event("error")));
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => {
        const event = new inside.MessageEvent("message", { data: structuredClone(data) });
        if (inside.onmessage) inside.onmessage(event);
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
}
