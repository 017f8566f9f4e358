-- The accounts of the ledger, each a hash of a version and a text (`stores/ledger.py` has the rules).
-- Keys of their own remember for a while that an entry was settled, or that a run has ended.

-- Returns the time in ms, whether the entry is settled, and for each account: whether the run has
-- ended, version, text.
function methods.read(entry, run, ...)
  local ended, versions, texts = {}, {}, {}
  for n, account in ipairs({ ... }) do
    local found = redis.call('HMGET', key('budget', account), 'version', 'text')
    ended[n] = redis.call('EXISTS', key('ended', account .. ':' .. run))
    versions[n], texts[n] = found[1] or '', found[2] or ''
  end
  return { now_ms(), redis.call('EXISTS', key('settled', entry)), ended, versions, texts }
end

-- Writes accounts under a new version, if each still has the version that was read. Returns 1, else 0.
-- Arguments for each account: its key, its lifetime in ms, the version that was read, its text.
function methods.write(version, entry, settled_ms, run, ended_ms, ...)
  local rows = { ... }
  for i = 1, #rows, 4 do
    local found = redis.call('HGET', key('budget', rows[i]), 'version') or ''
    if found == version then
      return 1 -- executed before, but the reply was lost
    elseif found ~= rows[i + 2] then
      return 0
    end
  end
  if entry ~= '' and not redis.call('SET', key('settled', entry), '', 'PX', settled_ms, 'NX') then
    return 0
  end
  for i = 1, #rows, 4 do
    redis.call('HSET', key('budget', rows[i]), 'version', version, 'text', rows[i + 3])
    redis.call('PEXPIRE', key('budget', rows[i]), rows[i + 1])
    if run ~= '' then
      redis.call('SET', key('ended', rows[i] .. ':' .. run), '', 'PX', ended_ms)
    end
  end
  return 1
end
