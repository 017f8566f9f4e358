-- The accounts of the ledger, each a hash of a version and a text (`stores/ledger.py` has the rules).
-- That an entry is settled, or a run counted to its end, is known for a while by a key of its own.

-- Gives the time in ms, whether the entry is settled, and for each account: whether the run has been
-- counted to its end, version, text.
function methods.read(entry, run, ...)
  local ended, versions, texts = {}, {}, {}
  for n, account in ipairs({ ... }) do
    local found = redis.call('HMGET', key('budget', account), 'version', 'text')
    ended[n] = redis.call('EXISTS', key('ended', account .. ':' .. run))
    versions[n], texts[n] = found[1] or '', found[2] or ''
  end
  return { now_ms(), redis.call('EXISTS', key('settled', entry)), ended, versions, texts }
end

-- Writes accounts under a new version, if each still has the version that was read. Gives 1, else 0.
-- For each account: its key, the ms for which it is kept, the version that was read, its text.
function methods.write(version, entry, settled_ms, run, ended_ms, ...)
  local rows = { ... }
  for i = 1, #rows, 4 do
    local found = redis.call('HGET', key('budget', rows[i]), 'version') or ''
    if found == version then
      return 1 -- this call was executed before, and its reply was lost
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
