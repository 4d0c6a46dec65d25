"""Whole data sets: every item explained into a store, by a run that may be killed at any moment and goes on.

explain_dataset(…, out)       one call, and the same call again to go on (explain_dataset.py)
├── items.py                  the items of a folder, list, torch Dataset, tar or parquet file, in a fixed order
├── manifest.py               what is asked for, with fingerprints; a store of something else is refused
├── reader.py                 items are read and decoded, in threads or in processes of their own
├── work.py                   a batch of items → rows; a shard of rows → arrays
├── local.py, cluster.py      the engines: decoding, explaining and writing overlap; or Dask's workers
└── store.py, commits.py      a shard's files are written whole, and then entered in the ledger
open_dataset(out)             reading it back (open_dataset.py); also while it runs; all that is read is checked
examine, repair               every file and row is compared; what is damaged is restored or taken back (verify.py)

What lies where in a store, which is a zarr v3 group:

manifest.json                 network, plan, input set and their fingerprints; versions, command, shapes. Written last
                              of all that comes before the work: a folder without it is not a store yet
ledger.sqlite                 tables items (number, name, place, size, label), shards (number, hashes of its chunks,
                              items that could not be explained), files (what manifest.json and zarr.json say),
                              every row with a checksum. A shard counts once it is in here
run.log                       when a run began and ended, and how far it was every 20 seconds
lock.sqlite                   locked by the operating system while a run is at work
heatmap/                      (items, height, width) float16, to be multiplied by scale/ (items,) float32
contrast/, contrast_scale/    the same of what sets the class apart; on request
relevance/                    (items, channels, height, width) float32, before the sum over channels; on request
score/ probability/ target/ prediction/ label/ status/ input_hash/ ledger/
                              one row per item; ledger has the columns of `PARTS`
also/NAME/00000.npz           what an observer (`also=`) keeps of each shard
parts/00000.00000032.npz      batches of a shard that is not done, from its item 32 on; gone once it is

A shard is `shard` items in order: one file of each array (zarr's own name for it: heatmap/c/0/0/0), and one of each
observer.
"""
