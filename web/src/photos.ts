// Where a photograph comes from: picked, dropped, pasted, or one of those to begin with.

import * as api from "./api";
import { context } from "./colours";
import { byId, make } from "./dom";

const TYPES = "image/jpeg,image/png,image/webp,image/gif,image/bmp,image/tiff";
const SHRUNK = 2048; // the longer side of a photograph that was too large

export interface Taken {
  picture: Blob;
  file: string;
  note: string;
}

export class Photos {
  private asked = 0;

  constructor(
    private readonly limits: api.Models["limits"],
    private readonly events: { taken: (taken: Taken) => void; refused: (words: string) => void; network: (file: File) => void },
  ) {
    const input = byId<HTMLInputElement>("file");
    input.accept = TYPES;
    input.addEventListener("change", () => {
      if (input.files?.[0]) void this.take(input.files[0]);
      input.value = "";
    });
    for (const button of ["pick", "begin"]) byId(button).addEventListener("click", () => input.click());
    this.wireDrop();
    document.addEventListener("paste", (event) => {
      const file = event.clipboardData?.files[0];
      if (file && !byId("photograph").hidden && !byId("pictures").hidden) void this.take(file);
    });
  }

  private wireDrop(): void {
    const over = (on: boolean) => (event: Event): void => {
      event.preventDefault();
      document.body.classList.toggle("over", on);
    };
    for (const kind of ["dragenter", "dragover"]) document.addEventListener(kind, over(true));
    for (const kind of ["dragleave", "drop"]) document.addEventListener(kind, over(false));
    document.addEventListener("drop", (event) => {
      const file = event.dataTransfer?.files[0];
      if (!file) return;
      if (/\.onnx$/i.test(file.name)) this.events.network(file);
      else if (!byId("photograph").hidden) void this.take(file);
    });
  }

  // Thumbnails of the photographs that the server found in installed packages.
  async offer(samples: api.Sample[]): Promise<void> {
    if (!samples.length) return;
    byId("samples").hidden = byId("samples-label").hidden = false;
    byId("credits").textContent = `Photographs: ${samples.map(({ title, credit }) => `${title.toLowerCase()} ${credit}`).join("; ")}.`;
    const list = byId("samples").querySelector("ul")!;
    for (const sample of samples) {
      try {
        const picture = await api.getSample(sample.name);
        list.append(this.sample(sample, picture, ""));
        byId("tiles").append(this.sample(sample, picture, sample.title));
      } catch {
        // It is not offered.
      }
    }
  }

  private sample({ name, title }: api.Sample, picture: Blob, caption: string): HTMLElement {
    const image = make("img", { alt: caption ? "" : title, src: URL.createObjectURL(picture) });
    const button = make("button", { type: "button", class: "sample", "data-sample": name, title }, image, ...(caption ? [make("span", {}, caption)] : []));
    button.addEventListener("click", () => {
      this.asked += 1;
      this.events.taken({ picture, file: `${name}.png`, note: "" });
    });
    return make("li", {}, button);
  }

  private async take(file: File): Promise<void> {
    const most = this.limits.bytes;
    const asked = (this.asked += 1);
    if (file.size > most) {
      this.events.refused(`${file.name} is too large: ${(file.size / 2 ** 20).toFixed(1)} MiB; at most ${most / 2 ** 20} MiB are accepted.`);
      return;
    }
    const taken = await this.shrunk(file);
    if (asked === this.asked) this.events.taken(taken);
  }

  // A photograph of more pixels than the server takes is made smaller here; what this browser cannot read is sent as it is.
  private async shrunk(file: File): Promise<Taken> {
    const plain = { picture: file, file: file.name.slice(0, 200), note: "" };
    const image = make("img");
    const address = URL.createObjectURL(file);
    try {
      image.src = address;
      await new Promise((done, failed) => {
        image.addEventListener("load", done);
        image.addEventListener("error", failed);
      });
      const { naturalWidth: width, naturalHeight: height } = image;
      if (width * height <= this.limits.pixels) return plain;
      const canvas = make("canvas");
      const factor = SHRUNK / Math.max(width, height);
      canvas.width = Math.max(1, Math.round(factor * width));
      canvas.height = Math.max(1, Math.round(factor * height));
      context(canvas).imageSmoothingQuality = "high";
      context(canvas).drawImage(image, 0, 0, canvas.width, canvas.height);
      const picture = await new Promise<Blob | null>((done) => canvas.toBlob(done, "image/png"));
      if (!picture) return plain;
      const note = `It has ${width} × ${height} pixels and was shrunk to ${canvas.width} × ${canvas.height} before the upload. The Python code and the command read the original file, so their numbers differ slightly.`;
      return { ...plain, picture, note };
    } catch {
      return plain;
    } finally {
      URL.revokeObjectURL(address);
    }
  }
}
