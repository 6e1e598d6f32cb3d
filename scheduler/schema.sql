-- The scheduler's database, schema 1. Tables may change with a migration; the views v_* are for people and programs and
-- keep their columns. Times ending in _ms are milliseconds since 1970 (UTC); views show them as ISO text named _at.
-- A row's owner is who made it ('local' while there are no tokens).

CREATE TABLE meta (
  key TEXT PRIMARY KEY,
  value
) WITHOUT ROWID;

CREATE TABLE tokens (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  owner TEXT NOT NULL DEFAULT 'local',
  role TEXT NOT NULL CHECK (role IN ('admin', 'submit', 'read', 'join')),
  secret_hash BLOB NOT NULL,
  created_ms INTEGER NOT NULL,
  expires_ms INTEGER,
  revoked_ms INTEGER
);

-- A device whose identity was wiped comes back with another id under its old name, so names are not unique here.
CREATE TABLE agents (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  class TEXT NOT NULL DEFAULT 'workstation',
  os TEXT NOT NULL DEFAULT '',
  state TEXT NOT NULL DEFAULT 'away',
  backends TEXT NOT NULL DEFAULT '',
  cores INTEGER NOT NULL DEFAULT 0,
  threads INTEGER NOT NULL DEFAULT 0,
  memory_bytes INTEGER NOT NULL DEFAULT 0,
  memory_available_bytes INTEGER,
  gflops REAL,
  gbytes_per_s REAL,
  heat TEXT NOT NULL DEFAULT '',
  temperature_celsius REAL,
  battery_frac REAL,
  charging INTEGER NOT NULL DEFAULT 0,
  load REAL,
  slow_factor REAL NOT NULL DEFAULT 1,
  emulated INTEGER NOT NULL DEFAULT 0,
  jobs INTEGER NOT NULL DEFAULT 0,
  first_seen_ms INTEGER NOT NULL,
  last_seen_ms INTEGER NOT NULL
) WITHOUT ROWID;

-- Directed. from_agent or to_agent '' is yoked itself.
CREATE TABLE links (
  from_agent TEXT NOT NULL,
  to_agent TEXT NOT NULL,
  bytes_per_s REAL NOT NULL DEFAULT 0,
  latency_ms REAL,
  duplex TEXT NOT NULL DEFAULT 'full',
  cpu_ns_per_byte REAL,
  origin TEXT NOT NULL DEFAULT 'unknown',
  url TEXT NOT NULL DEFAULT '',
  text TEXT NOT NULL DEFAULT '',
  measured_ms INTEGER NOT NULL,
  PRIMARY KEY (from_agent, to_agent)
) WITHOUT ROWID;

CREATE TABLE models (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  owner TEXT NOT NULL DEFAULT 'local',
  graph_hash TEXT NOT NULL,
  blob_hash TEXT NOT NULL,
  bytes INTEGER NOT NULL,
  nodes INTEGER NOT NULL,
  weight_bytes INTEGER NOT NULL,
  inputs TEXT NOT NULL,
  outputs TEXT NOT NULL,
  created_ms INTEGER NOT NULL
);

-- Where content lies: a file of its own below blobs/, or a slice of another file (weights of a model).
CREATE TABLE blobs (
  hash TEXT PRIMARY KEY,
  file TEXT NOT NULL,
  at INTEGER NOT NULL,
  bytes INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE data (
  hash TEXT PRIMARY KEY,
  owner TEXT NOT NULL DEFAULT 'local',
  name TEXT,
  bytes INTEGER NOT NULL,
  created_ms INTEGER NOT NULL,
  used_ms INTEGER NOT NULL
) WITHOUT ROWID;

-- What an agent measured of a graph: rows of one (graph, agent, backends) are replaced together.
CREATE TABLE profiles (
  graph_hash TEXT NOT NULL,
  agent TEXT NOT NULL,
  backends TEXT NOT NULL,
  node INTEGER NOT NULL,
  form TEXT NOT NULL,
  size INTEGER NOT NULL,
  ms REAL NOT NULL,
  prepare_ms REAL NOT NULL,
  packed_bytes INTEGER NOT NULL,
  workspace_bytes INTEGER NOT NULL,
  measured_ms INTEGER NOT NULL,
  PRIMARY KEY (graph_hash, agent, backends, node, form, size)
) WITHOUT ROWID;

CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  owner TEXT NOT NULL DEFAULT 'local',
  kind TEXT NOT NULL,
  model TEXT NOT NULL,
  graph_hash TEXT NOT NULL DEFAULT '',
  state TEXT NOT NULL,
  objective TEXT NOT NULL,
  request TEXT NOT NULL,
  source TEXT NOT NULL DEFAULT '',
  batch INTEGER NOT NULL DEFAULT 0,
  microbatch INTEGER NOT NULL DEFAULT 0,
  samples INTEGER NOT NULL DEFAULT 0,
  done INTEGER NOT NULL DEFAULT 0,
  done_map BLOB,
  labelled INTEGER NOT NULL DEFAULT 0,
  correct INTEGER NOT NULL DEFAULT 0,
  outputs TEXT NOT NULL DEFAULT '',
  forms TEXT,
  run_ms REAL NOT NULL DEFAULT 0,
  replans INTEGER NOT NULL DEFAULT 0,
  plan INTEGER,
  error TEXT NOT NULL DEFAULT '',
  created_ms INTEGER NOT NULL,
  started_ms INTEGER,
  ended_ms INTEGER
);
CREATE INDEX jobs_state ON jobs (state);

CREATE TABLE job_events (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job INTEGER NOT NULL,
  at_ms INTEGER NOT NULL,
  kind TEXT NOT NULL,
  text TEXT NOT NULL
);
CREATE INDEX job_events_job ON job_events (job, id);

CREATE TABLE plans (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job INTEGER,
  model TEXT NOT NULL,
  graph_hash TEXT NOT NULL,
  reason TEXT NOT NULL,
  objective TEXT NOT NULL,
  plan TEXT NOT NULL,
  given TEXT,
  microbatch INTEGER NOT NULL,
  batch INTEGER NOT NULL,
  pipelines INTEGER NOT NULL,
  stages INTEGER NOT NULL,
  step_ms REAL,
  cost_ms REAL,
  bound_ms REAL,
  gap REAL,
  bottleneck TEXT,
  best_single TEXT,
  best_single_ms REAL,
  measured_step_ms REAL,
  measured_batches REAL,
  created_ms INTEGER NOT NULL
);
CREATE INDEX plans_job ON plans (job);

CREATE TABLE stages (
  plan INTEGER NOT NULL,
  pipeline INTEGER NOT NULL,
  stage INTEGER NOT NULL,
  agent TEXT NOT NULL,
  nodes TEXT NOT NULL,
  predicted_ms REAL,
  memory_bytes INTEGER,
  PRIMARY KEY (plan, pipeline, stage)
) WITHOUT ROWID;

CREATE TABLE stage_times (
  id INTEGER PRIMARY KEY,
  at_ms INTEGER NOT NULL,
  job INTEGER NOT NULL,
  plan INTEGER NOT NULL,
  pipeline INTEGER NOT NULL,
  stage INTEGER NOT NULL,
  agent TEXT NOT NULL,
  class TEXT NOT NULL,
  microbatches INTEGER NOT NULL,
  compute_ms REAL NOT NULL,
  wait_ms REAL NOT NULL,
  sent_bytes INTEGER NOT NULL,
  send_ms REAL NOT NULL,
  codec_error REAL,
  nonfinite INTEGER NOT NULL,
  late INTEGER NOT NULL
);
CREATE INDEX stage_times_plan ON stage_times (plan, pipeline, stage);
CREATE INDEX stage_times_job ON stage_times (job);

CREATE VIEW v_agents AS
SELECT id AS agent, name, class, state, backends, cores, threads, memory_bytes, memory_available_bytes, gflops,
       gbytes_per_s, heat, temperature_celsius, battery_frac, emulated, slow_factor,
       strftime('%Y-%m-%dT%H:%M:%fZ', last_seen_ms / 1000.0, 'unixepoch') AS last_seen_at, jobs
FROM agents ORDER BY name;

CREATE VIEW v_links AS
SELECT coalesce(a.name, CASE l.from_agent WHEN '' THEN 'yoked' ELSE l.from_agent END) AS from_agent,
       coalesce(b.name, CASE l.to_agent WHEN '' THEN 'yoked' ELSE l.to_agent END) AS to_agent,
       CASE l.origin WHEN 'unknown' THEN NULL ELSE l.bytes_per_s END AS bytes_per_s, l.latency_ms, l.duplex,
       l.cpu_ns_per_byte, l.origin, l.url, l.text,
       strftime('%Y-%m-%dT%H:%M:%fZ', l.measured_ms / 1000.0, 'unixepoch') AS measured_at
FROM links l LEFT JOIN agents a ON a.id = l.from_agent LEFT JOIN agents b ON b.id = l.to_agent
ORDER BY 1, 2;

CREATE VIEW v_models AS
SELECT name AS model, owner, graph_hash AS graph, bytes, nodes, weight_bytes, inputs, outputs,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_ms / 1000.0, 'unixepoch') AS created_at
FROM models ORDER BY name;

CREATE VIEW v_jobs AS
SELECT id AS job, kind, model, state, objective, source, samples, done,
       CASE WHEN labelled > 0 THEN CAST(correct AS REAL) / labelled END AS accuracy,
       CASE WHEN run_ms > 0 AND done > 0 THEN done * 1000.0 / run_ms END AS images_per_s,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_ms / 1000.0, 'unixepoch') AS created_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', started_ms / 1000.0, 'unixepoch') AS started_at,
       strftime('%Y-%m-%dT%H:%M:%fZ', ended_ms / 1000.0, 'unixepoch') AS ended_at,
       replans, nullif(error, '') AS error, plan, owner
FROM jobs ORDER BY id;

CREATE VIEW v_plans AS
SELECT id AS plan, job, model, graph_hash AS graph, reason, objective, microbatch, batch, pipelines, stages, step_ms,
       cost_ms, bound_ms, gap, bottleneck, best_single, best_single_ms, measured_step_ms,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_ms / 1000.0, 'unixepoch') AS created_at
FROM plans ORDER BY id;

CREATE VIEW v_stages AS
SELECT s.plan, s.pipeline, s.stage, s.agent, s.nodes, s.predicted_ms,
       (SELECT sum(t.compute_ms) / sum(t.microbatches) FROM stage_times t
        WHERE t.plan = s.plan AND t.pipeline = s.pipeline AND t.stage = s.stage) AS measured_ms,
       s.memory_bytes
FROM stages s ORDER BY 1, 2, 3;

CREATE VIEW v_stage_times AS
SELECT strftime('%Y-%m-%dT%H:%M:%fZ', at_ms / 1000.0, 'unixepoch') AS measured_at, job, plan, pipeline, stage, agent,
       microbatches, compute_ms, wait_ms, sent_bytes, send_ms, codec_error, nonfinite, late
FROM stage_times ORDER BY id;

CREATE VIEW v_plan_accuracy AS
SELECT id AS plan, job, model, objective, stages, batch, step_ms AS predicted_ms, measured_step_ms AS measured_ms,
       measured_step_ms / step_ms AS ratio, measured_batches
FROM plans WHERE measured_step_ms IS NOT NULL AND step_ms > 0 ORDER BY id;

CREATE VIEW v_cloud_seconds AS
SELECT job, agent, sum(compute_ms) / 1000.0 AS cloud_s, sum(microbatches) AS microbatches
FROM stage_times WHERE class = 'cloud' GROUP BY job, agent ORDER BY job, agent;
