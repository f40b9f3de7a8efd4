-- Prepended to each of the master's five scripts, with the limits of store.py. KEYS[1] is the epoch, ARGV[1] the caller's
-- token "<n>-<nonce>". Accepted: a higher n than stored, the very same string, or nothing stored. A new one is stored
-- first of all writes, so that a server out of memory refuses the whole script before it has changed anything. The stored
-- one is not written again, so that a master at work can renew its lease although memory is short.
local function number_of(token)
  return tonumber(string.match(token, '^(%d+)%-') or '0')
end

local epoch = redis.call('GET', KEYS[1])
if epoch and epoch ~= ARGV[1] and number_of(ARGV[1]) <= number_of(epoch) then
  return redis.error_reply('FENCED another master holds this run')
end
-- It expires with the run, and each publish begins that time again: a master that was killed leaves nothing for ever.
if epoch ~= ARGV[1] then redis.call('SET', KEYS[1], ARGV[1], 'EX', RUN_SECONDS) end

-- What each key of the run begins with.
local run = string.match(KEYS[1], '^es:[^:]*:')

-- Arguments are read in order; a counted list is its length and then its items.
local position = 1
local function argument()
  position = position + 1
  return ARGV[position]
end
local function list()
  local items = {}
  for i = 1, tonumber(argument()) do items[i] = argument() end
  return items
end

-- The ids in the run's set of workers. A larger set than any of ours is removed, so that a script never delays every run
-- on the server.
local function workers()
  if redis.call('SCARD', run .. 'workers') <= MOST_WORKERS then return redis.call('SMEMBERS', run .. 'workers') end
  redis.call('UNLINK', run .. 'workers')
  return {}
end

-- The master's own lease can be prolonged when memory is short; another one has to be written, with ``write``.
local function keep_lease(write, holder, milliseconds)
  if redis.call('GET', run .. 'master') == holder then
    redis.call('PEXPIRE', run .. 'master', milliseconds)
  else
    write('SET', run .. 'master', holder, 'PX', milliseconds)
  end
end

-- Remove the results and parameters of the stored publication and of older ones (asynchronous schedule), but those in keep.
local function close_all_but(keep)
  local stored = redis.call('HGET', run .. 'progress', 'publication') or ''
  local older = redis.call('HGET', run .. 'progress', 'open') or ''
  for publication in string.gmatch(stored .. ' ' .. older, '%d+%.%d+%-%x+') do
    if not keep[publication] then
      redis.call('UNLINK', run .. 'parameters:' .. publication)
      for _, kind in ipairs({ 'results:', 'moments:' }) do
        local part = 0
        while redis.call('UNLINK', run .. kind .. publication .. ':' .. part) == 1 do part = part + 1 end
      end
    end
  end
end
