// A map as a file that numpy.load reads.

export function npy(values: Float32Array, [height, width]: [number, number]): Blob {
  const about = `{'descr': '<f4', 'fortran_order': False, 'shape': (${height}, ${width}), }`;
  const head = `${about.padEnd(128 - 10 - 1)}\n`; // numbers begin at byte 128
  const begin = `\x93NUMPY\x01\x00${String.fromCharCode(head.length)}\x00${head}`;
  return new Blob([Uint8Array.from(begin, (letter) => letter.charCodeAt(0)), Float32Array.from(values)]);
}
