-- +goose Up
CREATE TABLE apps (
  id           TEXT PRIMARY KEY,
  workspace    TEXT NOT NULL,
  name         TEXT NOT NULL,
  state        TEXT NOT NULL,    -- active or deleting
  instance     TEXT NOT NULL,    -- the control plane process that has an operation on it under way; '': none
  settings     TEXT NOT NULL,    -- JSON: what its user set; encrypted
  found        TEXT NOT NULL,    -- JSON: what the last build found out
  deployment   TEXT NOT NULL,    -- that takes the requests; '': none
  generation   BIGINT NOT NULL,  -- grows with every cut-over: edges follow it
  numbered     BIGINT NOT NULL,  -- number of the last deployment
  hook_secret  TEXT NOT NULL,    -- of the generic webhook, encrypted
  deploy_key   TEXT NOT NULL,    -- private key for git over ssh, encrypted
  preview_of   TEXT NOT NULL,    -- the app that it is a preview of
  pull_request BIGINT NOT NULL,  -- number of the pull request of a preview
  preview      TEXT NOT NULL,    -- JSON: the pull request of a preview
  repository   TEXT NOT NULL,    -- owner/name at GitHub
  error        TEXT NOT NULL,    -- why its replicas do not run
  used         BIGINT NOT NULL,  -- when it was last requested
  created      BIGINT NOT NULL,
  changed      BIGINT NOT NULL
);
CREATE UNIQUE INDEX apps_name ON apps (name) WHERE state <> 'deleting';
CREATE INDEX apps_workspace ON apps (workspace);
CREATE INDEX apps_repository ON apps (repository) WHERE repository <> '';
CREATE INDEX apps_preview_of ON apps (preview_of) WHERE preview_of <> '';

CREATE TABLE app_deployments (
  id           TEXT PRIMARY KEY,
  app          TEXT NOT NULL,
  workspace    TEXT NOT NULL,
  number       BIGINT NOT NULL,
  state        TEXT NOT NULL,
  step         TEXT NOT NULL,    -- what it is doing, or what failed
  source       TEXT NOT NULL,    -- JSON: what it is made of
  settings     TEXT NOT NULL,    -- JSON: the settings of the app when it was asked for; encrypted
  result       TEXT NOT NULL,    -- JSON: what the build found out and made
  machine      TEXT NOT NULL,    -- the sandbox that is being built or started; '': none
  built        TEXT NOT NULL,    -- snapshot before the start; '': none
  ready        TEXT NOT NULL,    -- snapshot of the running app; '': none
  git_ref      TEXT NOT NULL,
  git_commit   TEXT NOT NULL,
  message      TEXT NOT NULL,
  code         TEXT NOT NULL,
  error        TEXT NOT NULL,
  creator      TEXT NOT NULL,
  created      BIGINT NOT NULL,
  changed      BIGINT NOT NULL,
  ended        BIGINT NOT NULL
);
CREATE UNIQUE INDEX app_deployments_number ON app_deployments (app, number);

-- The machines that serve apps.
CREATE TABLE app_replicas (
  id           TEXT PRIMARY KEY,
  app          TEXT NOT NULL,
  deployment   TEXT NOT NULL,
  sandbox      TEXT NOT NULL,
  state        TEXT NOT NULL,    -- starting, ready, asleep, draining or deleting
  restarts     BIGINT NOT NULL,
  error        TEXT NOT NULL,
  created      BIGINT NOT NULL,
  changed      BIGINT NOT NULL
);
CREATE INDEX app_replicas_app ON app_replicas (app);

CREATE TABLE app_variables (
  app          TEXT NOT NULL,    -- or 'preview-repo/<workspace>/<id>' for the variables of a repository's previews
  scope        TEXT NOT NULL,
  name         TEXT NOT NULL,
  value        TEXT NOT NULL,    -- encrypted
  secret       BOOLEAN NOT NULL,
  creator      TEXT NOT NULL,
  changed      BIGINT NOT NULL,
  PRIMARY KEY (app, scope, name)
);

CREATE TABLE app_domains (
  domain       TEXT PRIMARY KEY,
  app          TEXT NOT NULL,
  workspace    TEXT NOT NULL,
  state        TEXT NOT NULL,
  token        TEXT NOT NULL,    -- of the TXT record
  certificate  TEXT NOT NULL,    -- none, pending, issued or error
  error        TEXT NOT NULL,
  checked      BIGINT NOT NULL,  -- when its records were last looked up
  created      BIGINT NOT NULL,
  changed      BIGINT NOT NULL
);
CREATE INDEX app_domains_app ON app_domains (app);

CREATE TABLE app_log_lines (
  deployment   TEXT NOT NULL,    -- or an app: what its program prints
  number       BIGINT NOT NULL,
  created      BIGINT NOT NULL,
  level        TEXT NOT NULL,
  step         TEXT NOT NULL,
  line         TEXT NOT NULL,
  PRIMARY KEY (deployment, number)
);

-- Deliveries of webhooks that were taken, so that none is taken twice.
CREATE TABLE webhook_deliveries (
  id           TEXT PRIMARY KEY,
  created      BIGINT NOT NULL
);
CREATE INDEX webhook_deliveries_created ON webhook_deliveries (created);

CREATE TABLE preview_repos (
  workspace    TEXT NOT NULL,
  repository   BIGINT NOT NULL,  -- GitHub's id
  name         TEXT NOT NULL,    -- owner/name
  enabled      BOOLEAN NOT NULL,
  created      BIGINT NOT NULL,
  PRIMARY KEY (workspace, repository)
);

CREATE TABLE github_installations (
  id           BIGINT PRIMARY KEY, -- GitHub's id
  workspace    TEXT NOT NULL,
  account      TEXT NOT NULL,
  created      BIGINT NOT NULL
);

-- What the authority of certificates keeps: accounts, keys, certificates, and the locks of the processes that share it.
CREATE TABLE certificates (
  name         TEXT PRIMARY KEY,
  value        TEXT NOT NULL,    -- encrypted, base64
  changed      BIGINT NOT NULL
);
CREATE TABLE certificate_locks (
  name         TEXT PRIMARY KEY,
  holder       TEXT NOT NULL,
  expires      BIGINT NOT NULL
);
