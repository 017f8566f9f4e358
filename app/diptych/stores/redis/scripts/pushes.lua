-- The push notifications that callers want; `text` is a seq, a blank, and a config. `ms` is when one is
-- due, '' for never.
local DUE_PUSHES = PREFIX .. ':due_pushes'

local function postpone(run, id, ms)
  if ms == '' then
    redis.call('ZREM', DUE_PUSHES, run .. ' ' .. id)
  else
    redis.call('ZADD', DUE_PUSHES, now_ms() + ms, run .. ' ' .. id)
  end
end

-- Stores a push, which expires with its run. Returns 0 for an unknown run.
function methods.put(run, id, text, ms)
  local left = redis.call('PTTL', key('log', run))
  if left == -2 then
    return 0
  end
  redis.call('HSET', key('pushes', run), id, text)
  if left > 0 then
    redis.call('PEXPIRE', key('pushes', run), left)
  end
  postpone(run, id, ms)
  return 1
end

function methods.delete(run, id)
  redis.call('HDEL', key('pushes', run), id)
  postpone(run, id, '')
end

-- Returns run, id and text of each push that is due, and postpones it.
function methods.take(ms, max)
  local found = {}
  local due = redis.call('ZRANGE', DUE_PUSHES, '-inf', now_ms(), 'BYSCORE', 'LIMIT', 0, max)
  for _, each in ipairs(due) do
    local run, id = string.match(each, '^(%S+) (.*)$')
    local text = redis.call('HGET', key('pushes', run), id)
    postpone(run, id, text and ms or '')
    if text then
      found[#found + 1] = { run, id, text }
    end
  end
  return found
end

-- Sets the seq of a push, and returns its text; nothing if it was deleted.
function methods.advance(run, id, seq, ms)
  local text = redis.call('HGET', key('pushes', run), id)
  if text then
    text = seq .. string.match(text, ' .*$')
    redis.call('HSET', key('pushes', run), id, text)
  end
  postpone(run, id, text and ms or '')
  return text
end
