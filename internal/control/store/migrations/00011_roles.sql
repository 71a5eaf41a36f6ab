-- +goose Up
ALTER TABLE keys RENAME COLUMN scope TO role;
ALTER TABLE keys ADD COLUMN operator BOOLEAN NOT NULL DEFAULT FALSE; -- may operate the node
ALTER TABLE keys ADD COLUMN scopes TEXT NOT NULL DEFAULT '';         -- separated by spaces; '': all of the role
ALTER TABLE keys ADD COLUMN networks TEXT NOT NULL DEFAULT '';       -- separated by spaces; '': all
ALTER TABLE keys ADD COLUMN replaced_by TEXT NOT NULL DEFAULT '';    -- prefix of the key that it was rotated to
UPDATE keys SET operator = TRUE WHERE role = 'admin';
UPDATE keys SET role = 'owner' WHERE role = 'admin';
UPDATE keys SET role = 'developer' WHERE role = 'member';
CREATE INDEX audit_by_workspace ON audit (workspace, id);
