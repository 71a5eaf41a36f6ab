// Uses volumes with the published client of E2B: the calls for volumes, for what they have, and mounts of sandboxes.
import { strict as assert } from "node:assert";
import * as e2b from "e2b";
import { operation } from "./lib.mjs";

// useVolumes runs the operations, for clients that have volumes.
export async function useVolumes(template) {
  const { Sandbox, Volume, VolumeError, VolumeNotFoundError, VolumePathNotFoundError, AuthenticationError } = e2b;
  const name = "e2e-javascript";

  let volume;
  await operation("Volume.create, list, connect, getInfo", async () => {
    volume = await Volume.create(name);
    assert.ok((await Volume.list()).some((v) => v.volumeId === volume.volumeId && v.name === name));
    assert.equal((await Volume.connect(volume.volumeId)).name, name);
    assert.ok((await Volume.getInfo(volume.volumeId)).token);
    await assert.rejects(Volume.create(name), (e) => e instanceof VolumeError && /409/.test(e.message));
    await assert.rejects(Volume.create("no such name!"), (e) => e instanceof VolumeError && /400/.test(e.message));
    await assert.rejects(Volume.connect("vol" + "a".repeat(20)), VolumeNotFoundError);
  });
  if (!volume) return;
  await operation("volume: writeFile, readFile", async () => {
    const stat = await volume.writeFile("/hello.txt", "grüße 🐼", { uid: 1000, gid: 1001, mode: 0o640 });
    assert.deepEqual([stat.name, stat.type, stat.path, stat.size], ["hello.txt", "file", "/hello.txt", 12]);
    assert.deepEqual([stat.uid, stat.gid, stat.mode], [1000, 1001, 0o640]);
    assert.ok([stat.atime, stat.mtime, stat.ctime].every((d) => Math.abs(d - Date.now()) < 600_000), String(stat.mtime));
    assert.equal(await volume.readFile("/hello.txt"), "grüße 🐼");
    await assert.rejects(volume.writeFile("/hello.txt", "other"), VolumeError);
    await volume.writeFile("/hello.txt", new Blob(["replaced"]), { force: true });
    assert.equal(await (await volume.readFile("/hello.txt", { format: "blob" })).text(), "replaced");
    await volume.writeFile("/empty", "");
    assert.equal(await volume.readFile("/empty"), "");
    await assert.rejects(volume.readFile("/nope"), VolumePathNotFoundError);
    await assert.rejects(volume.writeFile("/no/parent", ""), VolumePathNotFoundError);
  });
  await operation("volume: large files, streamed both ways", async () => {
    const bytes = new Uint8Array(3 << 20).map((_, i) => (i * 7 + (i >> 8)) & 255);
    await volume.writeFile("/big.bin", new Blob([bytes]).stream());
    assert.deepEqual(await volume.readFile("/big.bin", { format: "bytes" }), bytes);
    const pieces = [];
    for await (const piece of await volume.readFile("/big.bin", { format: "stream" })) pieces.push(piece);
    assert.deepEqual(new Uint8Array(Buffer.concat(pieces)), bytes);
  });
  await operation("volume: makeDir, list, exists, getInfo, updateMetadata, remove", async () => {
    assert.equal((await volume.makeDir("/dir", { mode: 0o700, uid: 1000, gid: 1000 })).mode & 0o777, 0o700);
    assert.equal((await volume.makeDir("/deep/er/dir", { force: true })).type, "directory");
    await assert.rejects(volume.makeDir("/dir"), VolumeError);
    await assert.rejects(volume.makeDir("/no/parent"), VolumePathNotFoundError);
    await volume.writeFile("/dir/f", "x");
    assert.deepEqual((await volume.list("/dir")).map((e) => e.path), ["/dir/f"]);
    assert.ok((await volume.list("/", { depth: 3 })).some((e) => e.path === "/deep/er/dir"));
    await assert.rejects(volume.list("/nope"), VolumePathNotFoundError);
    const stat = await volume.updateMetadata("/dir/f", { uid: 1001, gid: 1002, mode: 0o755 });
    assert.deepEqual([stat.uid, stat.gid, stat.mode], [1001, 1002, 0o755]);
    await assert.rejects(volume.updateMetadata("/nope", { mode: 0o644 }), VolumePathNotFoundError);
    assert.equal((await volume.getInfo("/dir")).type, "directory");
    await volume.remove("/dir");
    assert.equal(await volume.exists("/dir"), false);
    await assert.rejects(volume.remove("/dir"), VolumePathNotFoundError);
    await assert.rejects(volume.list("/", { token: "wrong" }), AuthenticationError);
  });
  await operation("volumeMounts: a sandbox has the volume, and leaves what it wrote", async () => {
    await volume.writeFile("/from-outside", "seen", { force: true });
    const mount = { volumeMounts: { "/mnt/data": volume }, timeoutMs: 300_000 };
    const box = await Sandbox.create(template, mount);
    try {
      assert.equal(await box.files.read("/mnt/data/from-outside"), "seen");
      assert.deepEqual((await box.getInfo()).volumeMounts, [{ name, path: "/mnt/data" }]);
      await box.commands.run("echo kept > /mnt/data/from-inside", { user: "root" });
      assert.equal(await volume.readFile("/from-inside"), "kept\n");
      await assert.rejects(Volume.destroy(volume.volumeId), VolumeError);
      await assert.rejects(Sandbox.create(template, mount), (e) => e.message.includes(box.sandboxId));
    } finally {
      await box.kill();
    }
    const next = await Sandbox.create(template, mount);
    try {
      assert.equal(await next.files.read("/mnt/data/from-inside"), "kept\n");
    } finally {
      await next.kill();
    }
  });
  await operation("Volume.destroy", async () => {
    assert.equal(await Volume.destroy(volume.volumeId), true);
    assert.equal(await Volume.destroy(volume.volumeId), false);
  });
}
