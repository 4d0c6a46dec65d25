// The server's side of this is src/deeptaylor/app/server/schema.py.

import { json, send } from "./api";

export interface Counted {
  number: number;
  name: string;
  count: number;
}

export interface Offer {
  title: string;
  about: string;
  items: number;
  answers: Counted[];
  labels: Counted[];
  explained: Counted[];
  statuses: Counted[];
  lowest: number | null;
  highest: number | null;
  note: string;
  pictured: boolean;
  layers: string[];
}

// Which items; what is empty is left out.
export type Which = Record<string, string>;

export interface Item {
  index: number;
  name: string;
  said: string;
  wrong: boolean | null;
  score: number | null;
}

export interface Items {
  total: number;
  page: number;
  pages: number;
  items: Item[];
  sentence: string;
  mean: string;
}

export interface Told extends Item {
  sentences: string[];
  pictured: boolean;
  mapped: boolean;
}

export interface Cluster {
  number: number;
  size: number;
  alike: number;
  sentence: string;
}

export interface Clusters {
  state: "waiting" | "working" | "ready" | "failed";
  message: string;
  seconds: number;
  clusters: Cluster[];
  points: [item: number, cluster: number, x: number, y: number][];
  note: string;
}

export interface ChannelItem extends Item {
  value: number;
}

const ROOT = "/api/gallery";

function query(which: Which): string {
  const given = new URLSearchParams(Object.entries(which).filter(([, value]) => value !== ""));
  return given.size ? `?${given.toString()}` : "";
}

export const getItems = (which: Which): Promise<Items> => json(send(`${ROOT}/items${query(which)}`));
export const getItem = (number: number): Promise<Told> => json(send(`${ROOT}/items/${number}`));
export const getClusters = (): Promise<Clusters> => json(send(`${ROOT}/clusters`));
export const beginClusters = (): Promise<Clusters> => json(send(`${ROOT}/clusters`, { method: "POST" }));
export const getChannels = (layer: number): Promise<{ layer: string; channels: number[]; sentence: string }> =>
  json(send(`${ROOT}/layers/${layer}`));
export const getChannel = (layer: number, channel: number): Promise<{ sentence: string; items: ChannelItem[] }> =>
  json(send(`${ROOT}/layers/${layer}/${channel}`));
export const getPicture = async (path: string): Promise<Blob> => (await send(path)).blob();

// Where pictures are; they are fetched with the token, and not named in the page.
export const meanPath = (which: Which): string => `${ROOT}/mean.png${query(which)}`;
export const itemPath = (number: number, kind: "small" | "heatmap" | "seen" | "photograph"): string => `${ROOT}/items/${number}/${kind}.png`;
export const cropPath = (layer: number, channel: number, place: number): string => `${ROOT}/layers/${layer}/${channel}/${place}/crop.png`;
